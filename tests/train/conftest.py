"""The tiny set, shuffled and cached at 16 pixels as training does it; and its validation set."""

import pytest
from pyspark import SparkContext

from sparknet.loaders.blocks import Blocks, cache
from sparknet.loaders.labels import read_labels
from sparknet.loaders.samples import read_samples
from tests.sets import SYNSETS, TinySet

SIDE = 16


@pytest.fixture(scope="session")
def train_blocks(sc: SparkContext, tiny: TinySet) -> Blocks:
    """63 images of three classes in 7 blocks."""
    return cache(read_samples(sc, str(tiny.train)).shuffled(seed=3, partitions=7), SIDE)


@pytest.fixture(scope="session")
def val_blocks(sc: SparkContext, tiny: TinySet) -> Blocks:
    """31 images in the blocks that the source's plan gives."""
    labels = read_labels(str(tiny.val_txt), None, SYNSETS)
    return cache(read_samples(sc, str(tiny.val), labels=labels, class_names=SYNSETS), SIDE)
