"""Cached partitions: preprocessed images in memory-mapped files on the executors.

In: an RDD of samples. Out: blocks. A block is the images of one partition, raw uint8, in one file under an executor's
local directory; Spark keeps a small handle for each, which holds the labels and where every image came from. So a
block is a pure function of its handle: a task that misses the file, because its executor is gone or another host's,
makes it again from the source.
"""

import os
import socket
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pyspark import RDD, StorageLevel

from sparknet.errors import ConfigError, SessionError
from sparknet.loaders.decode import decode
from sparknet.loaders.layouts.plan import Sample
from sparknet.loaders.preprocess import resize, sum_images
from sparknet.loaders.samples import BadLimit, BadSample, Counted, Ledger, Samples, decode_samples
from sparknet.loaders.source import read_range
from sparknet.session import readable_errors


@dataclass(frozen=True, kw_only=True)
class Block:
    """Handle of a cached partition of n images.

    Attributes:
        name: of the file, without its folder.
        path: where it was written, on `host`.
        host: the machine that wrote it.
        side: height and width of the images, pixels.
        labels: (n,) int64, class indices.
        urls: the files that the images came from.
        url_of: (n,) int32, index into `urls`.
        offsets: (n,) int64, where each encoded image begins there, bytes.
        sizes: (n,) int64, its length, bytes.
        ledger: of the pass that built it.
    """

    name: str
    path: str
    host: str
    side: int
    labels: np.ndarray
    urls: tuple[str, ...]
    url_of: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    ledger: Ledger

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(n, side, side, 3)."""
        return (len(self), self.side, self.side, 3)

    def images(self) -> np.ndarray:
        """Map the block's images; make the file again first where it is missing.

        Returns:
            (n, side, side, 3) uint8, RGB, read-only.

        Raises:
            SourceError, DecodeError: the source no longer gives what it gave.
        """
        if not len(self):
            return np.zeros(self.shape, np.uint8)
        own = local_folder() / self.name
        for path in (Path(self.path), own):
            if (path == own or self.host == socket.gethostname()) and _is_whole(path, self.shape):
                return np.memmap(path, np.uint8, mode="r", shape=self.shape)
        with written_whole(own) as file:
            for url, offset, size in zip(self.url_of, self.offsets, self.sizes, strict=True):
                data = read_range(self.urls[url], int(offset), int(size))
                file.write(resize(decode(data), self.side).tobytes())
        return np.memmap(own, np.uint8, mode="r", shape=self.shape)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A set of preprocessed images, cached on the executors.

    Attributes:
        rdd: one `Block` a partition, persisted.
        counts: images of each block, by partition.
        side: height and width of the images, pixels.
        class_names: by class index.
        ledger: what the pass over the source came to.
        source: its URL.
    """

    rdd: RDD[Block]
    counts: tuple[int, ...]
    side: int
    class_names: tuple[str, ...]
    ledger: Ledger
    source: str

    def mean_image(self) -> np.ndarray:
        """Average all images, exactly: a distributed sum of integers, divided once.

        Returns:
            (side, side, 3) float32, RGB, in grey levels 0 to 255.
        """
        with readable_errors():
            total = self.rdd.map(partial(_sum_block, side=self.side)).treeReduce(np.add)
        return (total / self.ledger.good).astype(np.float32)

    def share_sizes(self, workers: int) -> list[int]:
        """Count the images of each worker's share.

        Args:
            workers: K.

        Raises:
            ConfigError: a worker would have no image.
        """
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        sizes = [sum(self.counts[worker::workers]) for worker in range(workers)]
        if not all(sizes):
            raise ConfigError(
                f"{self.source}: {workers} workers, but only {sum(size > 0 for size in sizes)} would get any of the "
                f"{self.ledger.good} images; use fewer workers"
            )
        return sizes

    def shares(self, workers: int) -> RDD[list[Block]]:
        """Divide the blocks among workers: block i goes to worker i modulo their number.

        Args:
            workers: K.

        Returns:
            K partitions of one list each, persisted, so that Spark runs a worker's rounds where its handles are.

        Raises:
            ConfigError: a worker would have no image.
        """
        self.share_sizes(workers)
        numbered = self.rdd.mapPartitionsWithIndex(partial(_assign, workers=workers))
        grouped = numbered.partitionBy(workers, int).mapPartitions(_as_list, preservesPartitioning=True)
        return grouped.persist(StorageLevel.MEMORY_AND_DISK)

    def close(self) -> None:
        """Let Spark forget the handles. The files go with the executors' local directories."""
        self.rdd.unpersist()


def cache(samples: Samples, side: int, max_bad: float = 0.01) -> Blocks:
    """Decode and resize every sample once, into block files on the executors, and count what came of them.

    Args:
        samples: labelled. Each of the RDD's partitions becomes a block.
        side: height and width of the images, pixels.
        max_bad: the largest share of bad samples, 0 to 1. Decided at the end of the pass, or by a task as soon as its
            own are too many for a set of that size.

    Raises:
        SampleError: samples were lost, none is good, or too many are bad.
        ConfigError: side is below 1, or max_bad not within 0 and 1.
    """
    if side < 1:
        raise ConfigError(f"side must be at least 1 pixel, got {side}")
    if not 0 <= max_bad <= 1:
        raise ConfigError(f"max-bad is a share of the set, from 0 to 1, got {max_bad}")
    # A sample takes at least a block of 512 bytes in a tar.
    limit = BadLimit(source=samples.source, share=max_bad, most=samples.size // 512)
    build = partial(_build, side=side, set_id=uuid.uuid4().hex[:12], limit=limit)
    rdd = samples.rdd.mapPartitionsWithIndex(build).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with readable_errors():
            summaries = rdd.map(_summary).collect()
        ledger = reduce(Ledger.__add__, (ledger for _, ledger in summaries), Ledger())
        ledger.check(samples.source)
        limit.check(ledger.bad, ledger.seen)
    except BaseException:
        rdd.unpersist()
        raise
    return Blocks(
        rdd=rdd,
        counts=tuple(count for count, _ in summaries),
        side=side,
        class_names=samples.class_names,
        ledger=ledger,
        source=samples.source,
    )


def local_folder() -> Path:
    """Where this executor keeps files that may vanish with it: SparkNet's part of Spark's local directory.

    Raises:
        SessionError: it cannot be made.
    """
    root = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
    folder = Path(root) / "sparknet"
    with _local_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a name of this attempt, and rename it when it is whole.

    Attempts at the same task may run at the same time (speculation), and a killed one leaves no half a file behind
    under the real name.
    """
    attempt = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with _local_disk(path):
            with attempt.open("wb") as file:
                yield file
            attempt.replace(path)
    finally:
        attempt.unlink(missing_ok=True)


@contextmanager
def _local_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SessionError(
            f"{path}: the executor cannot write it: {error.strerror or error}; make room there, or let Spark's local "
            "directory (spark.local.dir, SPARK_LOCAL_DIRS) lie on another disk"
        ) from error


def _build(index: int, samples: Iterable[Sample], side: int, set_id: str, limit: BadLimit) -> Iterator[Block]:
    path = local_folder() / f"{set_id}-{index:05d}.rgb"
    kept, bad = [], []
    counted = Counted(samples)
    url_index: dict[str, int] = {}
    with written_whole(path) as file:
        for outcome in decode_samples(counted):
            if isinstance(outcome, BadSample):
                bad.append(outcome)
                limit.check(bad)
                continue
            sample, pixels = outcome
            file.write(resize(pixels, side).data)
            url = url_index.setdefault(sample.url, len(url_index))
            kept.append((sample.label, url, sample.offset, len(sample.data)))
    labels, url_of, offsets, sizes = np.array(kept, np.int64).reshape(-1, 4).T.copy()
    yield Block(
        name=path.name,
        path=str(path),
        host=socket.gethostname(),
        side=side,
        labels=labels,
        urls=tuple(url_index),
        url_of=url_of.astype(np.int32),
        offsets=offsets,
        sizes=sizes,
        ledger=Ledger(counted.seen, len(kept), tuple(bad)),
    )


def _is_whole(path: Path, shape: tuple[int, ...]) -> bool:
    try:
        return path.stat().st_size == np.prod(shape)
    except OSError:
        return False


def _summary(block: Block) -> tuple[int, Ledger]:
    return len(block), block.ledger


def _sum_block(block: Block, side: int) -> np.ndarray:
    return sum_images([block.images()], side)


def _assign(index: int, blocks: Iterable[Block], workers: int) -> Iterator[tuple[int, tuple[int, Block]]]:
    for block in blocks:
        yield index % workers, (index, block)


def _as_list(numbered: Iterable[tuple[int, tuple[int, Block]]]) -> Iterator[list[Block]]:
    by_index = dict(entry for _, entry in numbered)
    yield [by_index[index] for index in sorted(by_index)]
