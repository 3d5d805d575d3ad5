"""Which samples of a share come in which minibatch.

An order is a pure function of (seed, share, iteration), never of timing: whoever asks for an iteration, first or again,
gets the same. Any iteration can be asked for at once, also in the middle of an epoch.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

from sparknet.errors import ConfigError

Order = Literal["epoch", "window", "replacement", "global"]
Tail = Literal["carried", "kept", "dropped"]

Indices = Callable[[int], np.ndarray]
"""From an iteration, since the start of training, to the (n,) int64 indices of its samples in the share."""


def order_of(name: Order, tail: Tail, *, samples: int, batch: int, tau: int, key: tuple[int, int]) -> Indices:
    """Make a share's order by name.

    Args:
        name: `epoch`, a permutation of the share in each epoch, every sample once; `window`, a random run of tau
            minibatches of the share as it lies in each round (Moritz et al., "SparkNet", ICLR 2016, section 2);
            `replacement`, each sample drawn at random from all. `global` is no order of a share: see
            `sparknet.loaders.elastic`.
        tail: of `epoch`: what becomes of the samples at its end that do not fill a minibatch. `carried`, they fill it
            up with the first of the next epoch; `kept`, they are a small one; `dropped`, they are left out of this
            epoch.
        samples: in the share.
        batch: samples in a minibatch.
        tau: iterations of a round.
        key: (seed, number of the share).

    Raises:
        ConfigError: a share smaller than a minibatch would be dropped as a whole.
    """
    if name == "global":
        raise ValueError("a share has no global order")
    if name == "window":
        return window(samples, batch, tau, key)
    if name == "replacement":
        return replacement(samples, batch, key)
    return epochs(samples, batch, tail, key)


def epochs(samples: int, batch: int, tail: Tail, key: tuple[int, int]) -> Indices:
    """Order by epochs; see `order_of`."""
    if tail == "dropped" and batch > samples:
        raise ConfigError(
            f"batch {batch}, but share {key[1]} has {samples} images, and the tail of an epoch is to be dropped; use a "
            f"batch of {samples} or less, or another --tail"
        )

    @lru_cache(maxsize=2)
    def permutation(epoch: int) -> np.ndarray:
        return np.random.default_rng((key[0], 2, key[1], epoch)).permutation(samples)

    def carried(iteration: int) -> np.ndarray:
        start, stop = iteration * batch, (iteration + 1) * batch
        first = start // samples
        sequence = [permutation(epoch) for epoch in range(first, (stop - 1) // samples + 1)]
        whole = sequence[0] if len(sequence) == 1 else np.concatenate(sequence)
        return whole[start - first * samples : stop - first * samples]

    def by_epoch(iteration: int) -> np.ndarray:
        epoch, place = divmod(iteration, minibatches)
        return permutation(epoch)[place * batch : (place + 1) * batch]

    minibatches = samples // batch if tail == "dropped" else -(-samples // batch)
    return carried if tail == "carried" else by_epoch


def window(samples: int, batch: int, tau: int, key: tuple[int, int]) -> Indices:
    """Order by a random run of each round; see `order_of`. It goes round the end of the share."""

    def indices(iteration: int) -> np.ndarray:
        round_number, place = divmod(iteration, tau)
        start = np.random.default_rng((key[0], 2, key[1], round_number)).integers(samples)
        return (start + place * batch + np.arange(batch)) % samples

    return indices


def replacement(samples: int, batch: int, key: tuple[int, int]) -> Indices:
    """Order by chance alone; see `order_of`."""

    def indices(iteration: int) -> np.ndarray:
        return np.random.default_rng((key[0], 2, key[1], iteration)).integers(0, samples, batch)

    return indices
