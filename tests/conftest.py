"""One Spark session for all tests of a process; small sets in the official layout; the real one where it is there."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark import SparkContext

from sparknet import command
from sparknet.loaders.samples import Samples
from sparknet.session import start
from tests.sets import TinySet, write_tiny_set

# An example may take as long as a busy machine makes it.
settings.register_profile("sparknet", deadline=None)
settings.load_profile("sparknet")


@pytest.fixture(scope="session")
def sc() -> Iterator[SparkContext]:
    """Spark on two slots of this machine, as `local[2,4]`: a failed task is tried again."""
    sc = start("local[2,4]", "sparknet-tests", conf={"spark.ui.enabled": "false", "spark.driver.memory": "2g"})
    sc.setLogLevel("OFF")
    yield sc
    sc.stop()


@pytest.fixture
def spark_of_the_tests(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that run in this process use that Spark, and few partitions: a real set's would be an image each."""

    @contextmanager
    def ours(*_: object) -> Iterator[SparkContext]:
        yield sc

    shuffled = Samples.shuffled
    monkeypatch.setattr(command, "running_spark", ours)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(Samples, "shuffled", lambda samples, seed: shuffled(samples, seed, 4))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinySet:
    """A made-up set of three classes in the official layout; see `tests.sets`."""
    return write_tiny_set(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """CIFAR-10 as JPEGs in the layout of ILSVRC2012, in the folder that SPARKNET_CIFAR10 names."""
    folder = os.environ.get("SPARKNET_CIFAR10")
    if folder is None:
        pytest.skip("SPARKNET_CIFAR10 does not name a folder with CIFAR-10 in the layout of ILSVRC2012")
    train = Path(folder) / "ILSVRC2012_img_train.tar"
    assert train.is_file(), f"SPARKNET_CIFAR10={folder} holds no {train.name}"
    return Path(folder)
