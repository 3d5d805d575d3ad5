"""Minibatches of any tensors from a worker's share. In: the share's blocks. Out: numpy arrays by name.

What `sparknet.loaders.minibatch` is for images. Which samples a batch holds follows from (seed, share, iteration).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from sparknet.loaders.orders import Order, Tail, order_of
from sparknet.loaders.stored import Chain
from sparknet.loaders.tensors import TensorBlock, fields_of

TensorBatch: TypeAlias = dict[str, np.ndarray]
"""n samples: arrays (n, ...) by name."""


class TensorShare(Chain):
    """The samples of one worker: its blocks, end to end.

    Args:
        blocks: in order, with a sample at least. Their files are mapped, and made again where missing.
        seed: of the run.
        number: of the worker, 0 to K - 1.
    """

    def __init__(self, blocks: Sequence[TensorBlock], seed: int, number: int) -> None:
        super().__init__(blocks)
        first = next(block for block in blocks if len(block))
        self.dtype, self._piece_samples = first.dtype, first.piece_samples
        self.seed, self.number = seed, number

    def gather(self, indices: np.ndarray, out: TensorBatch) -> TensorBatch:
        """Copy samples out of the blocks.

        Args:
            indices: (n,) of samples in the share.
            out: arrays of n samples or more, by name, to put them in.

        Returns:
            The first n of each.
        """
        block_of, numbers = self.locate(indices)
        rows = np.empty((len(indices), self.dtype.itemsize), np.uint8)
        for block in np.unique(block_of).tolist():
            here = block_of == block
            wanted = numbers[here]
            rows[here] = self.stored[block].rows(wanted // self._piece_samples)[wanted]
        samples = rows.view(self.dtype)[:, 0]
        for name, array in out.items():
            array[: len(indices)] = samples[name]
        return {name: array[: len(indices)] for name, array in out.items()}

    def minibatches(
        self,
        first_iteration: int,
        count: int,
        *,
        batch: int,
        order: Order = "epoch",
        tail: Tail = "carried",
        kept: int = 1,
    ) -> Iterator[TensorBatch]:
        """Draw the minibatches of a run of iterations, as `sparknet.loaders.minibatch.Share.minibatches` does.

        Args:
            first_iteration: since the start of training.
            count: of iterations, a round's.
            batch: samples in each.
            order: which samples come in which minibatch; see `sparknet.loaders.orders.order_of`.
            tail: what becomes of an epoch's last samples; likewise.
            kept: how many of the newest minibatches must stay as they are: their memory is used again.

        Raises:
            ConfigError: the share is smaller than a batch that it has to fill.
        """
        indices_of = order_of(order, tail, samples=len(self), batch=batch, tau=count, key=(self.seed, self.number))
        buffers = itertools.cycle([self._new_buffer(batch) for _ in range(kept)])
        for iteration, buffer in zip(range(first_iteration, first_iteration + count), buffers, strict=False):
            yield self.gather(indices_of(iteration), buffer)

    def _new_buffer(self, batch: int) -> TensorBatch:
        return {name: np.empty((batch, *shape), base) for name, (base, shape) in fields_of(self.dtype).items()}
