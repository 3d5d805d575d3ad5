"""Cached partitions: a set of preprocessed images in memory-mapped files on the executors.

In: an RDD of samples. Out: blocks, one for each of its partitions, whose handles Spark keeps; see
`sparknet.loaders.block`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from sparknet.errors import ConfigError, LabelError
from sparknet.loaders.block import Block, Form, check_quality, write_block
from sparknet.loaders.cached import Cached, check_limit, new_set_id, written
from sparknet.loaders.samples import BadLimit, Ledger, Samples, numbered
from sparknet.scratch import Room
from sparknet.session import executor_hosts, readable_errors, worker_slots


@dataclass(frozen=True, kw_only=True)
class Blocks(Cached[Block]):
    """A set of preprocessed images, cached on the executors; `source` is its URL.

    Attributes:
        side: height and width of the images, pixels.
        class_names: by class index.
        ledger: what the pass over the source came to.
    """

    side: int
    class_names: tuple[str, ...]
    ledger: Ledger

    def mean_image(self) -> np.ndarray:
        """Average all images, exactly: a distributed sum of each block's integer sum, divided once.

        Returns:
            (side, side, 3) float32, RGB, in grey levels 0 to 255.
        """
        with readable_errors():
            slots = worker_slots(self.rdd.context)  # a task costs more than the sum of a block
            total = self.rdd.coalesce(slots).mapPartitions(partial(_sum, side=self.side)).treeReduce(np.add)
        mean: np.ndarray = (total / self.ledger.good).astype(np.float32)
        return mean

    def colour_components(self) -> np.ndarray:
        """Find the principal components of all pixels' colours, exactly summed.

        Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", NIPS 2012, section 4.1,
        shift an image by the components, each times its eigenvalue times a random number. The eigenvalues are those of
        colours from 0 to 1; the result is in grey levels.

        Returns:
            (3, 3) float32, a component a column, in the order red, green, blue: 255 times eigenvalue times eigenvector,
            the largest last.
        """
        with readable_errors():
            slots = worker_slots(self.rdd.context)
            squares = self.rdd.coalesce(slots).mapPartitions(_squares).treeReduce(np.add)
        pixels = self.ledger.good * self.side * self.side
        first, second = squares[0] / (255 * pixels), squares[1:] / (255 * 255 * pixels)
        values, vectors = np.linalg.eigh(second - np.outer(first, first))
        vectors *= np.sign(vectors.sum(axis=0))  # either sign is right; the same everywhere gives the same bits
        components: np.ndarray = (255 * vectors * values).astype(np.float32)
        return components


def cache(
    samples: Samples,
    side: int,
    max_bad: float = 0.01,
    limit_bytes: int | None = None,
    *,
    quality: int | None = None,
) -> Blocks:
    """Decode and resize every sample once, into block files on the executors, and count what came of them.

    Args:
        samples: labelled. Each of the RDD's partitions becomes a block.
        side: height and width of the images, pixels.
        max_bad: the largest share of bad samples, 0 to 1. Decided at the end of the pass, or by a task as soon as its
            own are too many for a set of that size.
        limit_bytes: the most that block files, of this set and others, may take on an executor's disks; as much as
            there is where None.
        quality: keep the images as JPEGs of this quality, 1 to 100, where space is short: a fifth to a tenth of it is
            taken, each is decoded whenever it is drawn, and a little is lost. None keeps the pixels.

    Raises:
        SampleError: samples were lost, none is good, or too many are bad.
        LabelError: a sample's class is not one of the set's.
        SessionError: a disk has not the room. What was written is removed.
        ConfigError: the images take more than limit_bytes; what was written is removed. Or side is below 1, or
            max_bad not within 0 and 1.
    """
    if side < 1:
        raise ConfigError(f"side must be at least 1 pixel, got {side}")
    check_limit(limit_bytes)
    check_quality(quality)
    if not 0 <= max_bad <= 1:
        raise ConfigError(f"max-bad is a share of the set, from 0 to 1, got {max_bad}")
    limit = BadLimit(source=samples.source, share=max_bad, most=samples.most)
    sc, set_id = samples.rdd.context, new_set_id()
    room = Room(limit_bytes=limit_bytes, files=samples.rdd.getNumPartitions(), hosts=len(executor_hosts(sc)))
    build = partial(write_block, form=Form(side, quality), set_id=set_id, limit=limit, room=room, again=samples.again)
    rdd = samples.rdd.mapPartitionsWithIndex(build)

    def check(handles: tuple[Block, ...]) -> None:
        ledger = _ledger(handles)
        ledger.check(samples.source)
        limit.check(ledger.bad, ledger.seen)
        highest = _highest_class(handles)
        if highest >= len(samples.class_names) > 0:
            raise LabelError(
                f"{samples.source}: has class {highest}, but there are {len(samples.class_names)} classes (0 to "
                f"{len(samples.class_names) - 1})"
            )

    handles = written(rdd, set_id, check)
    return Blocks(
        rdd=rdd,
        handles=handles,
        sent=sc.broadcast(handles),
        side=side,
        class_names=samples.class_names or numbered([_highest_class(handles)]),
        ledger=_ledger(handles),
        source=samples.source,
        set_id=set_id,
    )


def _highest_class(handles: Iterable[Block]) -> int:
    return max(int(block.labels.max()) for block in handles if len(block))


def _ledger(handles: Iterable[Block]) -> Ledger:
    return reduce(Ledger.__add__, (block.ledger for block in handles), Ledger())


def _sum(blocks: Iterable[Block], side: int) -> Iterator[np.ndarray]:
    yield sum((block.sum() for block in blocks), np.zeros((side, side, 3), np.int64))


def _squares(blocks: Iterable[Block]) -> Iterator[np.ndarray]:
    """Sum colours, and products of two: (4, 3) int64."""
    total = np.zeros((4, 3), np.int64)
    for block in blocks:
        for image in block.images().reshape(len(block), -1, 3):
            colours = image.astype(np.float64)  # whose products are exact: an image's sum is below 2^53
            total[0] += image.sum(axis=0, dtype=np.int64)
            total[1:] += (colours.T @ colours).astype(np.int64)
    yield total
