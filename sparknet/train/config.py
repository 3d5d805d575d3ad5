"""What a training run is made of: frozen, and checked once when made."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from sparknet.errors import ConfigError
from sparknet.loaders.augment import Augmentation
from sparknet.loaders.orders import Order, Tail

Policy = Literal["fixed", "step", "exp", "inv", "multistep", "poly"]
Momentum = Literal["kept", "reset", "averaged"]
MeanMode = Literal["image", "channel", "none"]


@dataclass(frozen=True, kw_only=True)
class SolverConfig:
    """SGD as Caffe defines it.

    Attributes:
        base_lr: learning rate that the policy starts from.
        momentum: share of the last step that goes into the next, 0 up to 1.
        weight_decay: L2 penalty; its gradient is `weight_decay * w`.
        policy: how the rate follows from the iteration; see `sparknet.train.solver.learning_rate`.
        gamma: of the policies step, exp, inv and multistep.
        power: of the policies inv and poly.
        step_size: of the policy step, iterations.
        step_values: of the policy multistep, iterations, rising. A list is taken too.
        max_iterations: of the policy poly: where the rate reaches 0.
    """

    base_lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0005
    policy: Policy = "fixed"
    gamma: float = 0.1
    power: float = 1.0
    step_size: int = 0
    step_values: tuple[int, ...] = ()
    max_iterations: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_values", tuple(self.step_values))  # a configuration is hashable
        _choice("lr-policy", self.policy, get_args(Policy))
        _check(0 < self.base_lr < math.inf, "lr must be above 0 and finite", self.base_lr)
        _check(0 <= self.momentum < 1, "momentum must be from 0 up to 1", self.momentum)
        _check(0 <= self.weight_decay < math.inf, "weight-decay must be finite and not negative", self.weight_decay)
        # A negative base of a power has no real value, and 0 to a negative power none at all.
        _check(0 <= self.gamma < math.inf, "gamma must be finite and not negative", self.gamma)
        _check(0 <= self.power < math.inf, "power must be finite and not negative", self.power)
        if self.policy == "step":
            _check(
                self.step_size >= 1,
                "the policy step needs a step-size of at least 1 iteration",
                self.step_size,
            )
        if self.policy == "multistep":
            rising = all(a < b for a, b in zip(self.step_values, self.step_values[1:], strict=False))
            _check(
                bool(self.step_values) and rising,
                "the policy multistep needs rising step-values",
                self.step_values,
            )
        if self.policy == "poly":
            _check(
                self.max_iterations >= 1,
                "the policy poly needs max-iterations of at least 1",
                self.max_iterations,
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run, but for its data.

    Attributes:
        net: name of a network of ours, or `module:function` of one's own.
        crop: height and width of what the network sees, pixels.
        batch: samples in a worker's minibatch.
        workers: K, how many train at the same time.
        tau: iterations of a worker between two averages.
        rounds: how often to average.
        seed: of the initial weights, the order of samples, crops, and dropout.
        momentum_mode: what becomes of the solver's momentum at an average: each worker's is `kept`, `reset` to
            zero, or `averaged` with the weights.
        solver: of the inner iterations.
        order: which samples come in which minibatch: `epoch`, `window` or `replacement`, of each worker's share (see
            `sparknet.loaders.orders.order_of`), or `global` (`sparknet.loaders.elastic`), with which a run can go on
            with another K.
        tail: of an epoch: `carried`, `kept` or `dropped`; where None, kept with the order global, else carried.
        mirror: whether half of the training samples are mirrored.
        resized_crop: whether training samples are windows of random size and shape, resized to the crop; see
            `sparknet.loaders.augment.Augmentation`.
        pca_colour: standard deviation of the shifts of training samples' colours; likewise. AlexNet's is 0.1.
        mean: what is subtracted: the training set's mean `image`, its mean by `channel`, `none`, or three values, red,
            green, blue. A list is taken too.
        bgr: whether the network's input is blue, green, red, as networks made with Caffe take it.
        scale: factor of the input, after the mean.
        prefetch: minibatches that a worker's background thread makes ahead of the network; 0 for none. No bit of the
            result depends on it.
        test_every: rounds between two evaluations; the last round is always followed by one.
        test_batch: crops at once in an evaluation.
        test_crops: of each image in an evaluation: 1, its centre, or 10 (`sparknet.loaders.minibatch.crops_to_score`).
        checkpoint_every: rounds between two checkpoints; the last round is always followed by one.
        keep_checkpoints: how many of the newest to keep.
        threads: of torch in each worker. Part of the configuration, for it changes the bits of the result.
        device: `cpu`, `cuda`, or `auto` for CUDA where a worker has it.
    """

    net: str
    crop: int = 224
    batch: int = 256
    workers: int = 1
    tau: int = 10
    rounds: int = 100
    seed: int = 0
    momentum_mode: Momentum = "kept"
    solver: SolverConfig = field(default_factory=SolverConfig)
    order: Order = "epoch"
    tail: Tail | None = None
    mirror: bool = False
    resized_crop: bool = False
    pca_colour: float = 0.0
    mean: MeanMode | tuple[float, float, float] = "image"
    bgr: bool = False
    scale: float = 1.0
    prefetch: int = 0
    test_every: int = 50
    test_batch: int = 100
    test_crops: int = 1
    checkpoint_every: int = 50
    keep_checkpoints: int = 3
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in (
            "crop",
            "batch",
            "workers",
            "tau",
            "rounds",
            "test_every",
            "test_batch",
            "checkpoint_every",
            "keep_checkpoints",
            "threads",
        ):
            _check(getattr(self, name) >= 1, f"{name.replace('_', '-')} must be at least 1", getattr(self, name))
        _check(0 <= self.seed < 2**64, "seed must be from 0 up to 2^64", self.seed)
        _check(self.prefetch >= 0, "prefetch must not be negative", self.prefetch)
        _check(0 < self.scale < math.inf, "scale must be above 0 and finite", self.scale)
        _choice("momentum-mode", self.momentum_mode, get_args(Momentum))
        _choice("order", self.order, get_args(Order))
        _choice("tail", self.epoch_tail, get_args(Tail))
        _check(
            (self.order, self.tail) != ("global", "carried"),
            "the order global keeps an epoch's tail or drops it; tail must be kept or dropped",
            self.tail,
        )
        _choice("device", self.device, ("cpu", "cuda", "auto"))
        _check(self.test_crops in (1, 10), "test-crops must be 1 or 10", self.test_crops)
        if isinstance(self.mean, str):
            _choice("mean", self.mean, (*get_args(MeanMode), "or three values R,G,B"))
        else:
            object.__setattr__(self, "mean", tuple(self.mean))
            _check(
                len(self.mean) == 3 and all(0 <= value <= 255 for value in self.mean),
                "mean values are three, for red, green and blue, from 0 to 255",
                ",".join(map(str, self.mean)),
            )
        _check(
            not (self.resized_crop and self.mean == "image"),
            "a resized crop has no place in a mean image; with it, mean must be channel, none, or three values",
            self.mean,
        )
        _ = self.augmentation  # checks its own

    @property
    def augmentation(self) -> Augmentation:
        """What becomes of a training image."""
        return Augmentation(crop=self.crop, mirror=self.mirror, resized=self.resized_crop, colour=self.pca_colour)

    @property
    def epoch_tail(self) -> Tail:
        """What becomes of an epoch's tail where `tail` does not say."""
        return self.tail or ("kept" if self.order == "global" else "carried")


def _check(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{rule}, got {value}")


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    _check(value in choices, f"{name} must be one of {', '.join(choices)}", value)
