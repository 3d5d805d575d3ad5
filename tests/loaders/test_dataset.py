"""Minibatches outside of SparkNet's trainer."""

from typing import Any

import numpy as np
import pytest
import torch
from pyspark import SparkContext
from torch.utils.data import DataLoader

from sparknet.errors import ConfigError
from sparknet.loaders.augment import Augmentation
from sparknet.loaders.block import Block
from sparknet.loaders.blocks import Blocks
from sparknet.loaders.dataset import MinibatchDataset, minibatch_rdd
from sparknet.loaders.minibatch import Share
from sparknet.loaders.orders import Tail
from tests.loaders.test_minibatch import SIDE, images_of, kept, same, write_block
from tests.train.test_evaluate import blocks_of


@pytest.fixture(scope="module")
def handles(tmp_path_factory: pytest.TempPathFactory) -> list[Block]:
    """Blocks of 5, 0, 7 and 3 images; image i has label i."""
    folder = tmp_path_factory.mktemp("dataset")
    return [write_block(folder, range(a, b)) for a, b in ((0, 5), (5, 5), (5, 12), (12, 15))]


def labels_of(loader: Any) -> list[int]:
    return [label for _, labels in loader for label in labels.tolist()]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_each_sample_once_an_epoch_whatever_the_number_of_workers(handles: list[Block], workers: int) -> None:
    dataset = MinibatchDataset(handles, batch=4, augmentation=Augmentation(crop=SIDE))
    orders = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        found = list(DataLoader(dataset, batch_size=None, num_workers=workers))
        assert sorted(label for _, labels in found for label in labels.tolist()) == [*range(15)]
        for images, labels in found:
            assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
            expected = images_of(range(15))[labels.numpy()].transpose(0, 3, 1, 2)
            assert np.array_equal(images.numpy(), expected)
        orders.append([labels.tolist() for _, labels in found])
    assert orders[0] != orders[1]


def test_the_same_epoch_is_the_same(handles: list[Block]) -> None:
    dataset = MinibatchDataset(handles, batch=4, augmentation=Augmentation(crop=6, mirror=True), seed=3)
    once, again = list(dataset), list(dataset)
    for (images, labels), (others, other_labels) in zip(once, again, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


@pytest.mark.parametrize(
    ("batch", "tail", "sizes"), [(4, "kept", [4, 4, 4, 3]), (4, "dropped", [4] * 3), (16, "dropped", [])]
)
def test_the_tail_of_an_epoch(handles: list[Block], batch: int, tail: Tail, sizes: list[int]) -> None:
    found = list(MinibatchDataset(handles, batch=batch, augmentation=Augmentation(crop=6), tail=tail))
    assert [len(labels) for _, labels in found] == sizes


def test_a_dataset_that_cannot_be(handles: list[Block]) -> None:
    with pytest.raises(ConfigError, match=r"^the tail of a dataset's epoch is kept or dropped"):
        MinibatchDataset(handles, batch=4, augmentation=Augmentation(crop=6), tail="carried")
    with pytest.raises(ConfigError, match=r"^a dataset needs a sample, and the blocks have none$"):
        MinibatchDataset(handles[1:2], batch=4, augmentation=Augmentation(crop=6))


def test_an_rdd_gives_what_the_workers_of_a_training_draw(sc: SparkContext, handles: list[Block]) -> None:
    blocks: Blocks = blocks_of(sc, handles, classes=15)
    how: dict[str, Any] = {"batch": 4, "augmentation": Augmentation(crop=6, mirror=True)}
    found = minibatch_rdd(blocks, 2, 3, 5, seed=1, **how).glom().collect()
    for worker, batches in enumerate(found):
        expected = kept(Share(handles[worker::2], 1, worker).minibatches(3, 5, **how))
        for one, other in zip(batches, expected, strict=True):
            assert same(one, other)
    with pytest.raises(ConfigError, match="4 workers, but only 3 would get any of the 15 samples"):
        minibatch_rdd(blocks, 4, 0, 1, **how)
