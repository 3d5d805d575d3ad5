"""The main loop: broadcast, tau iterations on each worker, average; and, every so many rounds, an evaluation.

Moritz, Nishihara, Stoica and Jordan, "SparkNet: Training Deep Networks in Spark", ICLR 2016, Algorithm 1.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import SparkContext
from torch import nn

from sparknet.errors import ConfigError, DivergedError
from sparknet.loaders.augment import check_crop
from sparknet.loaders.blocks import Blocks
from sparknet.session import worker_slots
from sparknet.train import checkpoint
from sparknet.train.config import TrainConfig
from sparknet.train.evaluate import Scores, check_set
from sparknet.train.exchange import Exchange, Round
from sparknet.train.exchange.spark import SparkExchange
from sparknet.train.models import build
from sparknet.train.net import Net
from sparknet.train.solver import learning_rate
from sparknet.train.worker import check_device

_log = logging.getLogger(__name__)


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
        seconds: in rounds, from their start to their end; evaluations and checkpoints left out.
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
    resume: bool = False,
    origin: Mapping[str, Any] | None = None,
    on_round: Callable[[RoundMetrics], None] | None = None,
) -> Result:
    """Train a network on cached images.

    Args:
        train_set: shuffled across its blocks; block i belongs to worker i modulo K.
        val_set: evaluated every `config.test_every` rounds and after the last; None for no evaluation.
        config: of the run.
        out: the run's folder; see `sparknet.train.checkpoint`. Nothing is written where None.
        resume: whether `out` holds a run to go on with, from its newest whole checkpoint, as if it had never stopped:
            the same settings on the same images give the same bits. The number of rounds may be another.
        origin: where the sets came from, to be kept in the folder.
        on_round: called after each round.

    Raises:
        ConfigError: the configuration does not fit the data, the network, the cluster, or the run to be resumed.
        LabelError: the validation set has more classes.
        RunError: `out` holds another run, or none to resume, or cannot be written.
        DivergedError: a worker's loss, or a weight that is to be saved, is not a finite number.
    """
    classes = len(train_set.class_names)
    net = Net(check_fits(config, train_set.rdd.context, classes=classes, side=train_set.side), config.solver)
    if val_set is not None:
        check_set(val_set, classes=classes, crop=config.crop, side=train_set.side)
    settings = checkpoint.Settings(
        config=config,
        side=train_set.side,
        class_names=train_set.class_names,
        counts=train_set.counts,
        origin=origin or {},
    )
    start = checkpoint.Checkpoint(rounds=0, images=0, seconds=0.0, weights=net.get_weights().copy(), momentum=())
    if resume:
        if out is None:
            raise ConfigError("there is no folder to resume from; give out")
        start, mean, colour = _resumed(settings, start, out)
    else:
        if config.order != "global":
            _check_batch(config.batch, train_set, config.workers)
        mean = _mean(train_set, config)
        colour = train_set.colour_components() if config.pca_colour else None
        if out is not None:
            bad = train_set.ledger.bad + (val_set.ledger.bad if val_set else ())
            checkpoint.begin(settings, mean, bad, out, colour)
    exchange: Exchange = SparkExchange(train_set, config, mean, colour)
    try:
        end = _rounds(exchange, start, config, val_set, out, on_round)
    finally:
        exchange.close()
    return Result(
        run=checkpoint.Run(settings=settings, weights=end.weights, mean=mean),
        scores=end.scores,
        rounds=end.rounds,
        images=end.images,
        seconds=end.seconds,
    )


def check_fits(config: TrainConfig, sc: SparkContext, *, classes: int, side: int) -> nn.Module:
    """Make sure that a run can begin, as far as that is known without reading the data.

    Args:
        config: of the run.
        sc: where it is to run.
        classes: of the training set.
        side: height and width of the preprocessed images, pixels.

    Returns:
        The network, with the weights that the run begins from.

    Raises:
        ConfigError: there is no class, the crop is too large, the network does not fit, K is above the slots, or the
            workers have no such device.
    """
    if classes < 1:
        raise ConfigError("the training set has no labels; name a label file (--labels FILE)")
    check_crop(config.crop, side)
    check_device(config.device, sc)
    slots = worker_slots(sc)
    if config.workers > slots:
        raise ConfigError(
            f"{config.workers} workers, but the master {sc.master} runs {slots} tasks at a time; "
            "use fewer workers, or a master with more slots"
        )
    return build(config.net, classes, config.crop, config.seed)


def _mean(train_set: Blocks, config: TrainConfig) -> np.ndarray | None:
    """What is to be subtracted, in grey levels: (side, side, 3) or (3,) float32."""
    if config.mean == "none":
        return None
    if not isinstance(config.mean, str):
        return np.array(config.mean, np.float32)
    image = train_set.mean_image()
    return image if config.mean == "image" else image.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)


def _check_batch(batch: int, train_set: Blocks, workers: int) -> None:
    sizes = train_set.share_sizes(workers)
    least = min(sizes)
    if batch > least:
        raise ConfigError(
            f"batch {batch}, but worker {sizes.index(least)} has a share of {least} images; use a batch of {least} or "
            "less, or fewer workers"
        )


def _rounds(
    exchange: Exchange,
    start: checkpoint.Checkpoint,
    config: TrainConfig,
    val_set: Blocks | None,
    out: Path | None,
    on_round: Callable[[RoundMetrics], None] | None,
) -> checkpoint.Checkpoint:
    """Run the rounds that are left."""
    state = start
    for number in range(start.rounds, config.rounds):
        last = number + 1 == config.rounds
        tested = val_set is not None and (last or (number + 1) % config.test_every == 0)
        saved = out is not None and (last or (number + 1) % config.checkpoint_every == 0)
        began = time.perf_counter()
        momentum = _to_send(state, start, config)
        outcome = exchange.train(number, state.weights, momentum, collect_momentum=saved, position=state.position)
        elapsed = time.perf_counter() - began
        rate = learning_rate(config.solver, (number + 1) * config.tau - 1)
        _check_losses(outcome, number + 1, rate)
        if (tested or saved or last) and not np.isfinite(outcome.weights.flat).all():
            # A loss is measured before its step: what the last step did shows here.
            raise DivergedError(
                f"round {number + 1}: a weight is no finite number at learning rate {rate:g}; use a lower --lr"
            )
        state = checkpoint.Checkpoint(
            rounds=number + 1,
            images=state.images + sum(report.samples for report in outcome.reports),
            seconds=state.seconds + elapsed,
            weights=outcome.weights,
            momentum=outcome.momentum,
            scores=state.scores,
            position=state.position + config.workers * config.tau,
        )
        metrics = _metrics(outcome, state, rate, elapsed)
        if tested and val_set is not None:
            scores = exchange.evaluate(val_set, state.weights)
            state = dataclasses.replace(state, scores=scores)
            metrics = dataclasses.replace(
                metrics, top1=scores.top1, top5=scores.top5, test_loss=scores.loss / scores.samples
            )
        if out is not None:
            line = {name: value for name, value in dataclasses.asdict(metrics).items() if value is not None}
            checkpoint.append_metrics(out, line)
        if saved and out is not None:
            # Last: a run that is killed before has its evaluation, and its line, once more.
            checkpoint.save(state, out, config.keep_checkpoints)
        if on_round is not None:
            on_round(metrics)
    return state


def _to_send(state: checkpoint.Checkpoint, start: checkpoint.Checkpoint, config: TrainConfig) -> tuple[np.ndarray, ...]:
    """Choose the momentum that goes out: workers that keep theirs need it only where they have none yet."""
    return state.momentum if config.momentum_mode == "averaged" or state is start else ()


def _resumed(
    settings: checkpoint.Settings, fresh: checkpoint.Checkpoint, out: Path
) -> tuple[checkpoint.Checkpoint, np.ndarray | None, np.ndarray | None]:
    """Take up a run where its newest whole checkpoint is; at its start where there is none."""
    began = checkpoint.load_settings(out)
    free = {"rounds", "test_every", "test_crops", "checkpoint_every", "keep_checkpoints", "prefetch"}
    if began.config.order == "global" and began.config.momentum_mode != "kept":
        free.add("workers")
    now = _by_name(settings.config)
    for name, value in _by_name(began.config).items():
        if name not in free and now[name] != value:
            raise ConfigError(
                f"{out}: was begun with {name} = {value}, which cannot become {now[name]}; begin a new run"
            )
    for name in ("side", "class_names", "counts"):
        if getattr(began, name) != getattr(settings, name):
            raise ConfigError(
                f"{out}: its training set was another one: {sum(began.counts):,} images of side {began.side} in "
                f"{len(began.class_names)} classes then, {sum(settings.counts):,} of side {settings.side} in "
                f"{len(settings.class_names)} now, or otherwise divided; give the set that it was begun with"
            )
    found, damaged = checkpoint.newest(out)
    state = found or fresh
    for line in damaged:
        _log.warning("%s; going on from round %d", line, state.rounds)
    if state.rounds > settings.config.rounds:
        raise ConfigError(f"{out}: {state.rounds} rounds are done, more than the {settings.config.rounds} asked for")
    fresh.weights.check_like(state.weights)
    checkpoint.trim_metrics(out, state.rounds)
    if found:
        # A run that was killed between writing its last checkpoint and these would never write them again.
        checkpoint.save_weights(found.weights, out)
    checkpoint.save_settings(dataclasses.replace(settings, origin=began.origin), out)
    return state, *checkpoint.load_pixels(began, out)


def _by_name(config: TrainConfig) -> dict[str, object]:
    """List settings by name, the solver's among them."""
    settings = dataclasses.asdict(config)
    return {**settings.pop("solver"), **settings}


def _check_losses(outcome: Round, number: int, rate: float) -> None:
    for worker, report in enumerate(outcome.reports):
        if not math.isfinite(report.loss):
            raise DivergedError(
                f"round {number}: the loss of worker {worker} is {report.loss} at learning rate {rate:g}; "
                "use a lower --lr"
            )


def _metrics(outcome: Round, state: checkpoint.Checkpoint, rate: float, elapsed: float) -> RoundMetrics:
    slowest = max(outcome.reports, key=lambda report: report.compute_s + report.data_s)
    samples = sum(report.samples for report in outcome.reports)
    return RoundMetrics(
        round=state.rounds,
        images=state.images,
        loss=sum(report.loss * report.samples for report in outcome.reports) / samples,
        rate=rate,
        seconds=elapsed,
        compute_s=slowest.compute_s,
        data_s=slowest.data_s,
        communicate_s=elapsed - slowest.compute_s - slowest.data_s,
        momentum_lost=sum(report.momentum_lost for report in outcome.reports),
    )
