"""Weights travel by Spark alone: a job a round; out by broadcast, back as the job's result in pieces.

Needs no ports between hosts, and Spark tries a lost task again.
"""

import itertools
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from pyspark import Broadcast

from sparknet.loaders.block import Block
from sparknet.loaders.blocks import Blocks
from sparknet.loaders.elastic import GlobalOrder, GlobalShare, Turn, partition_sizes
from sparknet.loaders.minibatch import Share
from sparknet.scratch import local_path, written_whole
from sparknet.session import readable_errors
from sparknet.tensor.weights import WeightCollection, average_flat
from sparknet.train.config import TrainConfig
from sparknet.train.evaluate import Scores, evaluate
from sparknet.train.exchange import Round, WorkerReport
from sparknet.train.worker import replica, train_round

# A result is pickled piece by piece; large pieces are copied more often on their way through the JVM.
_PIECE_BYTES = 8 * 1024 * 1024

_Pixels = tuple[np.ndarray | None, np.ndarray | None]
_Sent = tuple[np.ndarray, tuple[np.ndarray, ...]]


class SparkExchange:
    """The exchange by Spark jobs; see `sparknet.train.exchange.Exchange`.

    Args:
        blocks: the training set.
        config: of the run.
        mean: (side, side, 3) or (3,) float32, the mean image or values; None to subtract nothing.
        colour: (3, 3) float32, the set's colour components, where the run shifts colours.

    Raises:
        ConfigError: a worker would have no image, or an epoch no minibatch.
    """

    def __init__(
        self, blocks: Blocks, config: TrainConfig, mean: np.ndarray | None, colour: np.ndarray | None = None
    ) -> None:
        self._config, self._mean = config, mean
        self._classes = len(blocks.class_names)
        self._shares = blocks.shares(config.workers)
        self._run_id = uuid.uuid4().hex[:12]
        # The same in every round: it is sent once, and stays on the executors.
        self._pixels_sent: Broadcast[_Pixels] = self._shares.context.broadcast((mean, colour))
        # With one order for all, a worker may draw from any block.
        self._order: GlobalOrder | None = None
        self._whole_set = blocks.sent
        if config.order == "global":
            self._order = GlobalOrder(partition_sizes(blocks.counts), config.batch, config.epoch_tail)
        self._open = True

    def train(
        self,
        round_number: int,
        weights: WeightCollection,
        momentum: tuple[np.ndarray, ...],
        collect_momentum: bool,
        position: int = 0,
    ) -> Round:
        """Run a round as one Spark job; a task that is lost is tried again by Spark."""
        sc = self._shares.context
        sent: Broadcast[_Sent] = sc.broadcast((weights.flat, momentum))
        try:
            task = partial(
                _train_task,
                sent=sent,
                pixels_sent=self._pixels_sent,
                round_number=round_number,
                config=self._config,
                classes=self._classes,
                run_id=self._run_id,
                turns=self._order.deal(position, self._config.workers, self._config.tau) if self._order else None,
                whole_set=self._whole_set,
                with_momentum=self._config.momentum_mode == "averaged"
                or (collect_momentum and self._config.momentum_mode == "kept"),
            )
            with readable_errors():
                results = self._shares.mapPartitionsWithIndex(task).collect()
        finally:
            sent.destroy()
        reports = tuple(item for item in results if isinstance(item, WorkerReport))
        samples, size = [report.samples for report in reports], len(weights.flat)
        vectors = list(_vectors(results, weights.flat.dtype))
        average = average_flat((vector[:size] for vector in vectors), samples)
        momenta = tuple(vector[size:] for vector in vectors if len(vector) > size)
        if self._config.momentum_mode == "averaged":
            momenta = (average_flat(momenta, samples),)
        return Round(weights=weights.with_flat(average), momentum=momenta, reports=reports)

    def evaluate(self, blocks: Blocks, weights: WeightCollection) -> Scores:
        """Run an evaluation as one Spark job."""
        return evaluate(blocks, weights, self._mean, self._config, self._classes)

    def close(self) -> None:
        """Let Spark forget the mean. Files of kept momentum go with the executors' local directories."""
        if self._open:  # a broadcast cannot be destroyed twice
            self._pixels_sent.destroy()
            self._open = False


def _train_task(
    worker: int,
    shares: Iterable[list[Block]],
    sent: Broadcast[_Sent],
    pixels_sent: Broadcast[_Pixels],
    round_number: int,
    config: TrainConfig,
    classes: int,
    run_id: str,
    turns: list[list[Turn]] | None,
    whole_set: Broadcast[tuple[Block, ...]],
    with_momentum: bool,
) -> Iterator[WorkerReport | bytes]:
    """Train on a share; give back a report, then the weights, and the momentum where asked, in pieces."""
    [blocks] = shares
    weights, momenta = sent.value
    momentum, lost = None, False
    if momenta:
        momentum = momenta[worker if config.momentum_mode == "kept" else 0]
    elif config.momentum_mode == "kept" and round_number:
        momentum = _load_momentum(_momentum_path(run_id, worker, round_number))
        lost = momentum is None
    share: Share | GlobalShare
    if turns is None:
        share = Share(blocks, config.seed, worker)
    else:
        share = GlobalShare(whole_set.value, turns[worker], config.seed, worker)
    outcome = train_round(replica(config, classes), share, weights, momentum, round_number, config, *pixels_sent.value)
    if config.momentum_mode == "kept":
        # Written for the next round; this round's stays, for the case that this task is tried again.
        with written_whole(_momentum_path(run_id, worker, round_number + 1)) as file:
            np.save(file, outcome.momentum)
        _momentum_path(run_id, worker, round_number - 1).unlink(missing_ok=True)
    yield WorkerReport(
        samples=outcome.samples,
        loss=outcome.loss,
        data_s=outcome.data_s,
        compute_s=outcome.compute_s,
        momentum_lost=lost,
    )
    data = np.concatenate((outcome.weights, outcome.momentum) if with_momentum else (outcome.weights,)).tobytes()
    for start in range(0, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]


def _vectors(results: list[WorkerReport | bytes], dtype: np.dtype) -> Iterator[np.ndarray]:
    """Put the pieces of each worker together again: they follow its report."""
    starts = [i for i, item in enumerate(results) if isinstance(item, WorkerReport)] + [len(results)]
    for start, stop in itertools.pairwise(starts):
        yield np.frombuffer(b"".join(results[start + 1 : stop]), dtype)  # type: ignore[arg-type]


def _momentum_path(run_id: str, worker: int, round_number: int) -> Path:
    return local_path(f"{run_id}-momentum-{worker}-{round_number}.npy")


def _load_momentum(path: Path) -> np.ndarray | None:
    try:
        momentum: np.ndarray = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    return momentum
