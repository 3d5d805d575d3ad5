"""Minibatches without SparkNet's trainer: as a dataset for a torch loop of one's own, and as an RDD.

In: cached images, or other tensors. Out: the minibatches that a worker of SparkNet would draw.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

import torch
from pyspark import RDD
from torch.utils.data import IterableDataset, get_worker_info

from sparknet.errors import ConfigError
from sparknet.loaders.augment import Augmentation
from sparknet.loaders.block import Block
from sparknet.loaders.blocks import Blocks
from sparknet.loaders.minibatch import Minibatch, Share
from sparknet.loaders.orders import Order, Tail
from sparknet.loaders.stored import Chain, Handle
from sparknet.loaders.tensor_minibatch import TensorBatch, TensorShare
from sparknet.loaders.tensors import TensorBlock, TensorBlocks

_Block = TypeVar("_Block", bound=Handle)
_Share = TypeVar("_Share", bound=Chain)
_Item = TypeVar("_Item")


class _Epochs(IterableDataset[_Item], Generic[_Block, _Share, _Item]):
    """An epoch of minibatches each time that it is gone through."""

    def __init__(self, blocks: Sequence[_Block], batch: int, seed: int, tail: Tail) -> None:
        self._blocks = [block for block in blocks if len(block)]
        if not self._blocks:
            raise ConfigError("a dataset needs a sample, and the blocks have none")
        if tail == "carried":
            raise ConfigError("the tail of a dataset's epoch is kept or dropped; it cannot be carried to the next")
        self._batch, self._seed, self._tail = batch, seed, tail
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; each has an order of its own. Without it, all are the first.

        Args:
            epoch: from 0.
        """
        self._epoch = epoch

    def __iter__(self) -> Iterator[_Item]:
        """Go through the epoch, or this process's part of it."""
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        blocks = self._blocks[number::workers]
        if not blocks:
            return
        share = self._share(blocks, number)
        count = len(share) // self._batch if self._tail == "dropped" else -(-len(share) // self._batch)
        if count:
            yield from self._items(share, self._epoch * count, count)

    @abstractmethod
    def _share(self, blocks: list[_Block], number: int) -> _Share: ...

    @abstractmethod
    def _items(self, share: _Share, first_iteration: int, count: int) -> Iterator[_Item]: ...


class MinibatchDataset(_Epochs[Block, Share, tuple[torch.Tensor, torch.Tensor]]):
    """An epoch of minibatches of images: (n, 3, crop, crop) uint8, and (n,) int64 labels.

    For torch's DataLoader with `batch_size=None`. Each of its workers draws from blocks of its own: together they give
    every sample once an epoch, whatever their number. A block whose file lies on another host, or is gone, is made
    again from the source.

    Args:
        blocks: handles, as `Blocks.handles` has them.
        batch: samples in a minibatch.
        augmentation: what becomes of the images; they are not shifted in colour, for that is for floats.
        seed: of order and augmentation.
        tail: the samples at an epoch's end that do not fill a minibatch: `kept` as a small one, or `dropped`.

    Raises:
        ConfigError: there is no image, or the tail is to be carried over: an epoch ends with its iteration here.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        batch: int,
        augmentation: Augmentation,
        seed: int = 0,
        tail: Tail = "kept",
    ) -> None:
        super().__init__(blocks, batch, seed, tail)
        self._augmentation = augmentation

    def _share(self, blocks: list[Block], number: int) -> Share:
        return Share(blocks, self._seed, number)

    def _items(self, share: Share, first_iteration: int, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for found in share.minibatches(
            first_iteration, count, batch=self._batch, augmentation=self._augmentation, tail=self._tail
        ):
            # Of its own: the caller may keep it, and the next comes into the same memory.
            images = torch.from_numpy(found.images).permute(0, 3, 1, 2).clone()
            yield images, torch.from_numpy(found.labels)


class TensorMinibatchDataset(_Epochs[TensorBlock, TensorShare, dict[str, torch.Tensor]]):
    """An epoch of minibatches of other tensors than images: (n, ...) by name; else as `MinibatchDataset`.

    Args:
        blocks: handles, as `TensorBlocks.handles` has them.
        batch: samples in a minibatch.
        seed: of the order.
        tail: as for `MinibatchDataset`.

    Raises:
        ConfigError: as for `MinibatchDataset`.
    """

    def __init__(self, blocks: Sequence[TensorBlock], *, batch: int, seed: int = 0, tail: Tail = "kept") -> None:
        super().__init__(blocks, batch, seed, tail)

    def _share(self, blocks: list[TensorBlock], number: int) -> TensorShare:
        return TensorShare(blocks, self._seed, number)

    def _items(self, share: TensorShare, first_iteration: int, count: int) -> Iterator[dict[str, torch.Tensor]]:
        for found in share.minibatches(first_iteration, count, batch=self._batch, tail=self._tail):
            yield {name: torch.from_numpy(array).clone() for name, array in found.items()}


def minibatch_rdd(
    blocks: Blocks,
    workers: int,
    first_iteration: int,
    count: int,
    *,
    batch: int,
    augmentation: Augmentation,
    seed: int = 0,
    order: Order = "epoch",
    tail: Tail = "carried",
) -> RDD[Minibatch]:
    """Draw minibatches on the executors.

    Args:
        blocks: the set.
        workers: K, partitions of the result; each draws from a share of its own, as a worker of a training does.
        first_iteration: of each worker, from 0.
        count: of iterations.
        batch: samples in each.
        augmentation: what becomes of the images; shifts of colour are left to whoever makes floats of them.
        seed: of order and augmentation.
        order: which samples come in which minibatch; see `sparknet.loaders.orders.order_of`.
        tail: what becomes of an epoch's last samples; likewise.

    Returns:
        K partitions of `count` minibatches.

    Raises:
        ConfigError: a worker would have no image.
    """
    draw = partial(
        Share.minibatches,
        first_iteration=first_iteration,
        count=count,
        batch=batch,
        augmentation=augmentation,
        order=order,
        tail=tail,
    )
    return blocks.shares(workers).mapPartitionsWithIndex(
        partial(_draw, share_of=Share, draw=draw, copied=_copied, seed=seed)
    )


def tensor_minibatch_rdd(
    blocks: TensorBlocks,
    workers: int,
    first_iteration: int,
    count: int,
    *,
    batch: int,
    seed: int = 0,
    order: Order = "epoch",
    tail: Tail = "carried",
) -> RDD[TensorBatch]:
    """The same for other tensors than images; see `minibatch_rdd`."""
    draw = partial(
        TensorShare.minibatches,
        first_iteration=first_iteration,
        count=count,
        batch=batch,
        order=order,
        tail=tail,
    )
    return blocks.shares(workers).mapPartitionsWithIndex(
        partial(_draw, share_of=TensorShare, draw=draw, copied=_copied_tensors, seed=seed)
    )


def _draw(
    worker: int,
    shares: Iterable[list[_Block]],
    share_of: Callable[[list[_Block], int, int], _Share],
    draw: Callable[[_Share], Iterator[_Item]],
    copied: Callable[[_Item], _Item],
    seed: int,
) -> Iterator[_Item]:
    [blocks] = shares
    yield from map(copied, draw(share_of(blocks, seed, worker)))


def _copied(found: Minibatch) -> Minibatch:
    return found._replace(images=found.images.copy())


def _copied_tensors(found: TensorBatch) -> TensorBatch:
    return {name: array.copy() for name, array in found.items()}
