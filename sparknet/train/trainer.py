"""The main loop: broadcast, tau iterations on each worker, average; and, every so many rounds, an evaluation.

Moritz, Nishihara, Stoica and Jordan, "SparkNet: Training Deep Networks in Spark", ICLR 2016, Algorithm 1.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark import SparkContext

from sparknet.errors import ConfigError, DivergedError, RunError
from sparknet.loaders.blocks import Blocks
from sparknet.loaders.minibatch import check_crop
from sparknet.session import worker_slots
from sparknet.train import checkpoint
from sparknet.train.config import TrainConfig
from sparknet.train.evaluate import Scores, check_set
from sparknet.train.exchange import Exchange
from sparknet.train.exchange.spark import SparkExchange
from sparknet.train.models import build
from sparknet.train.net import Net
from sparknet.train.solver import learning_rate


@dataclass(frozen=True, kw_only=True)
class RoundMetrics:
    """A line of metrics.jsonl.

    Attributes:
        round: rounds done, from 1.
        images: trained on since the start.
        loss: mean over the round's samples.
        rate: learning rate of the round's last iteration.
        seconds: the round's, wall time.
        compute_s: of them, the slowest worker's network.
        data_s: of them, the slowest worker's wait for minibatches.
        communicate_s: all the rest: sending, collecting, averaging, Spark's scheduling.
        momentum_lost: workers that had to begin from zero momentum.
        top1: fraction of the validation set, where the round was followed by an evaluation.
        top5: likewise.
        test_loss: mean over the validation set, likewise.
    """

    round: int
    images: int
    loss: float
    rate: float
    seconds: float
    compute_s: float
    data_s: float
    communicate_s: float
    momentum_lost: int
    top1: float | None = None
    top5: float | None = None
    test_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished training.

    Attributes:
        run: weights and what else an evaluation needs.
        scores: of the last round on the validation set; None where there is none.
        rounds: done.
        images: samples trained on.
        seconds: from the first round's start to the last one's end, evaluations left out.
    """

    run: checkpoint.Run
    scores: Scores | None
    rounds: int
    images: int
    seconds: float

    @property
    def images_per_s(self) -> float:
        """Samples trained on a second, waiting and communication included."""
        return self.images / self.seconds


def train(
    train_set: Blocks,
    val_set: Blocks | None,
    config: TrainConfig,
    *,
    out: Path | None = None,
    on_round: Callable[[RoundMetrics], None] | None = None,
) -> Result:
    """Train a network on cached images.

    Args:
        train_set: shuffled across its blocks; block i belongs to worker i modulo K.
        val_set: evaluated every `config.test_every` rounds and after the last; None for no evaluation.
        config: of the run.
        out: the run's folder, made here; nothing is written where None. After each evaluation, and at the end, it
            holds the weights of that moment, and metrics.jsonl has a line a round.
        on_round: called after each round.

    Raises:
        ConfigError: the configuration does not fit the data, the network or the cluster.
        LabelError: the validation set has more classes.
        RunError: `out` holds another run, or cannot be written.
        DivergedError: a worker's loss, or a weight that is to be saved, is not a finite number.
    """
    check_fits(config, train_set.rdd.context, classes=len(train_set.class_names), side=train_set.side)
    if val_set is not None:
        check_set(val_set, classes=len(train_set.class_names), crop=config.crop, side=train_set.side)
    net = Net(build(config.net, len(train_set.class_names), config.crop, config.seed), config.solver)
    if out is not None:
        checkpoint.create_folder(out, train_set.ledger.bad + (val_set.ledger.bad if val_set else ()))
    mean = train_set.mean_image() if config.subtract_mean else None
    run = checkpoint.Run(
        config=config,
        side=train_set.side,
        class_names=train_set.class_names,
        weights=net.get_weights().copy(),
        mean=mean,
    )
    exchange: Exchange = SparkExchange(train_set, config, mean)
    try:
        return _rounds(exchange, run, val_set, out, on_round)
    finally:
        exchange.close()


def check_fits(config: TrainConfig, sc: SparkContext, *, classes: int, side: int) -> None:
    """Make sure that a run can begin, as far as that is known without reading the data.

    Args:
        config: of the run.
        sc: where it is to run.
        classes: of the training set.
        side: height and width of the preprocessed images, pixels.

    Raises:
        ConfigError: there is no class, the crop is too large, the network does not fit, or K is above the slots.
    """
    if classes < 1:
        raise ConfigError("the training set has no labels; name a label file (--labels FILE)")
    check_crop(config.crop, side)
    slots = worker_slots(sc)
    if config.workers > slots:
        raise ConfigError(
            f"{config.workers} workers, but the master {sc.master} runs {slots} tasks at a time; "
            "use fewer workers, or a master with more slots"
        )
    build(config.net, classes, config.crop, config.seed)


def _rounds(
    exchange: Exchange,
    run: checkpoint.Run,
    val_set: Blocks | None,
    out: Path | None,
    on_round: Callable[[RoundMetrics], None] | None,
) -> Result:
    config, weights = run.config, run.weights
    momentum: np.ndarray | None = None
    scores: Scores | None = None
    images, seconds = 0, 0.0
    for number in range(config.rounds):
        began = time.perf_counter()
        outcome = exchange.train(number, weights, momentum)
        weights, momentum = outcome.weights, outcome.momentum
        elapsed = time.perf_counter() - began
        seconds += elapsed
        images += sum(report.samples for report in outcome.reports)
        slowest = max(outcome.reports, key=lambda report: report.compute_s + report.data_s)
        rate = learning_rate(config.solver, (number + 1) * config.tau - 1)
        for worker, report in enumerate(outcome.reports):
            if not math.isfinite(report.loss):
                raise DivergedError(
                    f"round {number + 1}: the loss of worker {worker} is {report.loss} at learning rate {rate:g}; "
                    "use a lower --lr"
                )
        metrics = RoundMetrics(
            round=number + 1,
            images=images,
            loss=sum(report.loss * report.samples for report in outcome.reports)
            / sum(report.samples for report in outcome.reports),
            rate=rate,
            seconds=elapsed,
            compute_s=slowest.compute_s,
            data_s=slowest.data_s,
            communicate_s=elapsed - slowest.compute_s - slowest.data_s,
            momentum_lost=sum(report.momentum_lost for report in outcome.reports),
        )
        last = number + 1 == config.rounds
        due = last or (number + 1) % config.test_every == 0
        if due and not np.isfinite(weights.flat).all():  # a loss is measured before its step: the last step shows here
            raise DivergedError(
                f"round {number + 1}: a weight is no finite number at learning rate {rate:g}; use a lower --lr"
            )
        if due and val_set is not None:
            scores = exchange.evaluate(val_set, weights)
            metrics = dataclasses.replace(
                metrics, top1=scores.top1, top5=scores.top5, test_loss=scores.loss / scores.samples
            )
        if out is not None:
            _append(out / checkpoint.METRICS, metrics)
            if due:
                checkpoint.save(dataclasses.replace(run, weights=weights), out)
        if on_round is not None:
            on_round(metrics)
    return Result(
        run=dataclasses.replace(run, weights=weights),
        scores=scores,
        rounds=config.rounds,
        images=images,
        seconds=seconds,
    )


def _append(path: Path, metrics: RoundMetrics) -> None:
    line = {name: value for name, value in dataclasses.asdict(metrics).items() if value is not None}
    try:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error
