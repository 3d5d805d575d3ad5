"""Top-1 and top-5 over every image of a set. In: weights and blocks. Out: scores."""

import math
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import torch
from pyspark import Broadcast

from sparknet.errors import ConfigError, LabelError
from sparknet.loaders.augment import check_crop
from sparknet.loaders.block import Block
from sparknet.loaders.blocks import Blocks
from sparknet.loaders.convert import ToTensor
from sparknet.loaders.minibatch import crops_to_score
from sparknet.session import readable_errors
from sparknet.tensor.weights import WeightCollection
from sparknet.train.config import TrainConfig
from sparknet.train.net import Net
from sparknet.train.worker import replica


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Counts over samples; they add up.

    Attributes:
        samples: evaluated.
        correct: whose class had the highest score.
        correct5: whose class was among the five highest.
        loss: sum of their softmax losses.
    """

    samples: int = 0
    correct: int = 0
    correct5: int = 0
    loss: float = 0.0

    def __add__(self, other: "Scores") -> "Scores":
        return Scores(
            samples=self.samples + other.samples,
            correct=self.correct + other.correct,
            correct5=self.correct5 + other.correct5,
            loss=self.loss + other.loss,
        )

    @property
    def top1(self) -> float:
        """Fraction of samples."""
        return self.correct / self.samples

    @property
    def top5(self) -> float:
        """Fraction of samples."""
        return self.correct5 / self.samples


def evaluate(
    blocks: Blocks, weights: WeightCollection, mean: np.ndarray | None, config: TrainConfig, classes: int
) -> Scores:
    """Score weights on every image of a set, a task a block.

    Args:
        blocks: the set.
        weights: of the network.
        mean: (side, side, 3) or (3,) float32, the training set's mean image or values; None to subtract nothing.
        config: of the run that made the weights.
        classes: number of the network's outputs.

    Raises:
        LabelError: the set has more classes.
        ConfigError: the images' side is not the mean's, the crop is larger, or the weights are another network's.
    """
    side = len(mean) if mean is not None and mean.ndim == 3 else blocks.side
    check_set(blocks, classes=classes, crop=config.crop, side=side)
    sent = blocks.rdd.context.broadcast((weights.flat, mean))
    try:
        task = partial(_score_task, sent=sent, config=config, classes=classes)
        with readable_errors():
            return reduce(Scores.__add__, blocks.rdd.map(task).collect())
    finally:
        sent.destroy()


def check_set(blocks: Blocks, *, classes: int, crop: int, side: int) -> None:
    """Make sure that a set fits a network, before any of it is read.

    Args:
        blocks: the set.
        classes: number of the network's outputs.
        crop: height and width of what the network sees, pixels.
        side: height and width of the images that it was trained on, pixels.

    Raises:
        LabelError: the set has more classes.
        ConfigError: its images have another side, or the crop is larger.
    """
    if len(blocks.class_names) > classes:
        raise LabelError(f"{blocks.source}: {len(blocks.class_names)} classes, the network has {classes} outputs")
    if blocks.side != side:
        raise ConfigError(f"{blocks.source}: cached at a side of {blocks.side} pixels, the training set's is {side}")
    check_crop(crop, blocks.side)


def score_block(net: Net, block: Block, mean: np.ndarray | None, config: TrainConfig) -> Scores:
    """Score a network on every image of a block: evaluation mode, the last batch as short as it is.

    Of an image's views its probabilities are averaged.

    Args:
        net: with its weights set.
        block: of images.
        mean: as for `evaluate`.
        config: of the run.
    """
    torch.set_num_threads(config.threads)
    to_tensor = ToTensor(mean, config.scale, net.device, net.channels_last, bgr=config.bgr)
    total, views = Scores(), config.test_crops
    for batch in crops_to_score(block, max(config.test_batch // views, 1), config.crop, views):
        scores = net.forward(to_tensor(batch))
        if views > 1:
            scores = scores.log_softmax(1).view(-1, views, scores.shape[1]).logsumexp(1) - math.log(views)
        labels = torch.from_numpy(batch.labels[::views].copy()).to(net.device)
        best = scores.topk(min(5, scores.shape[1]), dim=1).indices == labels[:, None]
        total += Scores(
            samples=len(labels),
            correct=int(best[:, 0].sum()),
            correct5=int(best.sum()),
            loss=float(torch.nn.functional.cross_entropy(scores, labels, reduction="sum")),
        )
    return total


def _score_task(
    block: Block, sent: Broadcast[tuple[np.ndarray, np.ndarray | None]], config: TrainConfig, classes: int
) -> Scores:
    flat, mean = sent.value
    net = replica(config, classes)
    try:
        net.set_weights(flat)
    except ValueError as error:
        raise ConfigError(f"net {config.net}: is not the network that these weights are of: {error}") from error
    return score_block(net, block, mean, config)
