"""One sequence of minibatches for all workers, whatever their number: the order `global`.

The set is divided into virtual partitions, the same at any K. An epoch is each of their minibatches once, in a fixed
order; a round takes the next K * tau of them, and K only decides who runs which. So a run may go on with another K
where it was: no sample is left out, none comes twice. Its whole state is a position.

Mosaic's StreamingDataset has the same idea (canonical nodes; "elastic determinism").
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparknet.errors import ConfigError
from sparknet.loaders.augment import Augmentation
from sparknet.loaders.block import Block
from sparknet.loaders.minibatch import Minibatch, Share, new_buffer
from sparknet.loaders.orders import Order, Tail, epochs

VIRTUAL_PARTITIONS = 48
"""At most so many. Where K divides them (1, 2, 3, 4, 6, 8, 12, 16, 24) a worker draws from its own blocks alone."""


class Turn(NamedTuple):
    """A minibatch of the sequence.

    Attributes:
        partition: the virtual one that it is of.
        iteration: of that partition, since the start of training.
    """

    partition: int
    iteration: int


def partition_sizes(counts: Sequence[int]) -> list[int]:
    """Count the samples of each virtual partition: block i belongs to partition i modulo their number.

    Args:
        counts: samples of each block.
    """
    partitions = min(VIRTUAL_PARTITIONS, len(counts))
    return [sum(counts[partition::partitions]) for partition in range(partitions)]


class GlobalOrder:
    """The sequence of a set.

    Args:
        sizes: samples of each virtual partition.
        batch: samples in a minibatch.
        tail: what becomes of the last samples of a partition's epoch: `kept` as a small minibatch, or `dropped`.

    Raises:
        ConfigError: nothing is left where the tails are dropped.
    """

    def __init__(self, sizes: Sequence[int], batch: int, tail: Tail) -> None:
        each = np.array([size // batch if tail == "dropped" else -(-size // batch) for size in sizes])
        if not each.any():
            raise ConfigError(
                f"batch {batch}, but no partition has more than {max(sizes)} images, and tails are to be dropped; use "
                f"a batch of {max(sizes)} or less, or --tail kept"
            )
        self._each = each
        # First the first minibatch of each partition, then the second of each: neighbours are of different ones.
        self._turns = [Turn(int(v), i) for i in range(each.max()) for v in np.flatnonzero(each > i)]

    def __len__(self) -> int:
        """How many minibatches an epoch has."""
        return len(self._turns)

    def turn(self, position: int) -> Turn:
        """Give the minibatch at a place of the endless sequence of epochs."""
        epoch, place = divmod(position, len(self._turns))
        partition, i = self._turns[place]
        return Turn(partition, int(epoch * self._each[partition] + i))

    def deal(self, position: int, workers: int, tau: int) -> list[list[Turn]]:
        """Divide a round's minibatches among the workers.

        A worker gets those of its own partitions (partition modulo K is its number) as far as each has tau; the rest
        goes to whoever has fewer.

        Args:
            position: how many the run has drawn before.
            workers: K.
            tau: minibatches of each worker.
        """
        dealt: list[list[Turn]] = [[] for _ in range(workers)]
        left = []
        for place in range(position, position + workers * tau):
            turn = self.turn(place)
            own = dealt[turn.partition % workers]
            if len(own) < tau:
                own.append(turn)
            else:
                left.append(turn)
        for turns in dealt:
            while len(turns) < tau:
                turns.append(left.pop(0))
        return dealt


class GlobalShare:
    """What a worker draws in a round of the order `global`.

    Args:
        blocks: of the whole set.
        turns: the worker's.
        seed: of the run.
        number: of the worker.
    """

    def __init__(self, blocks: Sequence[Block], turns: Sequence[Turn], seed: int, number: int) -> None:
        partitions = min(VIRTUAL_PARTITIONS, len(blocks))
        self._turns, self.seed, self.number = turns, seed, number
        self._shares = {
            partition: Share(blocks[partition::partitions], seed, partition)
            for partition in sorted({turn.partition for turn in turns})
        }

    def minibatches(
        self,
        first_iteration: int,
        count: int,
        *,
        batch: int,
        augmentation: Augmentation,
        order: Order = "global",
        tail: Tail = "kept",
        kept: int = 1,
        pinned: bool = False,
    ) -> Iterator[Minibatch]:
        """Draw the round's minibatches, as `Share.minibatches` does; the first iteration is that of the turns."""
        buffers = itertools.cycle([new_buffer(batch, augmentation.crop, pinned) for _ in range(kept)])
        for turn, buffer in zip(self._turns, buffers, strict=False):
            share = self._shares[turn.partition]
            indices = epochs(len(share), batch, tail, (self.seed, turn.partition))
            yield share.minibatch(turn.iteration, indices(turn.iteration), augmentation, buffer)
