"""How weights travel between driver and workers: one interface, and a module for each way."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparknet.loaders.blocks import Blocks
from sparknet.tensor.weights import WeightCollection
from sparknet.train.evaluate import Scores


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """What a worker says of its round.

    Attributes:
        samples: trained on.
        loss: mean over them.
        data_s: spent on waiting for minibatches, seconds.
        compute_s: spent on the network, seconds.
        momentum_lost: whether it had kept momentum from the last round and did not find it.
    """

    samples: int
    loss: float
    data_s: float
    compute_s: float
    momentum_lost: bool


@dataclass(frozen=True, kw_only=True)
class Round:
    """A finished round.

    Attributes:
        weights: the average, each worker's counted by its samples.
        momentum: flat: the workers' average, for the mode `averaged`; each worker's, for the mode `kept` where it was
            asked for; else none.
        reports: by worker.
    """

    weights: WeightCollection
    momentum: tuple[np.ndarray, ...]
    reports: tuple[WorkerReport, ...]


class Exchange(Protocol):
    """A way for weights to travel. Every way gives the same averages, to float32 rounding."""

    def train(
        self,
        round_number: int,
        weights: WeightCollection,
        momentum: tuple[np.ndarray, ...],
        collect_momentum: bool,
        position: int = 0,
    ) -> Round:
        """Send weights out, have every worker take tau iterations, and average what comes back.

        Args:
            round_number: from 0.
            weights: to start from.
            momentum: flat, to start from: the average, for the mode `averaged`; one for each worker, for the mode
                `kept`, where a run is resumed. None at all: zeros, or what each worker has kept.
            collect_momentum: whether to bring back what each worker keeps, for a checkpoint.
            position: minibatches that the run has drawn before, for the order `global`.
        """

    def evaluate(self, blocks: Blocks, weights: WeightCollection) -> Scores:
        """Score weights on every image of a set."""

    def close(self) -> None:
        """Let go of what the workers hold for the run."""
