"""tau iterations of one worker: a function of its arguments alone.

The same function runs inside a Spark task, in a serial run, and in a simulation of K workers in one process.
"""

import time
from contextlib import closing
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from pyspark import SparkContext, TaskContext

from sparknet.errors import ConfigError
from sparknet.loaders.convert import ToTensor
from sparknet.loaders.elastic import GlobalShare
from sparknet.loaders.minibatch import Share
from sparknet.loaders.prefetch import prefetched
from sparknet.session import readable_errors
from sparknet.train.config import TrainConfig
from sparknet.train.models import build
from sparknet.train.net import Net


class Outcome(NamedTuple):
    """What a worker's round came to.

    Attributes:
        weights: flat weights after it. Belongs to the net until its next round where that is on a CPU.
        momentum: flat velocity after it.
        samples: trained on.
        loss: mean over them, each measured before its step.
        data_s: spent on waiting for minibatches, seconds.
        compute_s: spent on the network, seconds.
    """

    weights: np.ndarray
    momentum: np.ndarray
    samples: int
    loss: float
    data_s: float
    compute_s: float


def train_round(
    net: Net,
    share: Share | GlobalShare,
    weights: np.ndarray,
    momentum: np.ndarray | None,
    round_number: int,
    config: TrainConfig,
    mean: np.ndarray | None,
    colour: np.ndarray | None = None,
) -> Outcome:
    """Take tau iterations of SGD on a share.

    Args:
        net: to compute with. What it held before does not matter.
        share: what to train on.
        weights: flat, to start from; left as they are.
        momentum: flat velocity to start from; zeros where None.
        round_number: from 0; says which minibatches come and at which rates.
        config: of the run.
        mean: (side, side, 3) or (3,) float32, the mean image or values; None to subtract nothing.
        colour: (3, 3) float32, the set's components (`Blocks.colour_components`), where the run shifts colours.
    """
    torch.set_num_threads(config.threads)
    torch.manual_seed(_torch_seed(config.seed, share.number, round_number))
    net.set_weights(weights)
    net.set_momentum(momentum)
    to_tensor = ToTensor(
        mean, config.scale, net.device, net.channels_last, kept=config.prefetch + 1, bgr=config.bgr, colour=colour
    )
    first = round_number * config.tau
    batches = share.minibatches(
        first,
        config.tau,
        batch=config.batch,
        augmentation=config.augmentation,
        order=config.order,
        tail=config.epoch_tail,
        pinned=net.device.type == "cuda",
    )
    inputs = prefetched(((to_tensor(batch), torch.from_numpy(batch.labels)) for batch in batches), config.prefetch)
    losses, samples, data_s = [], 0, 0.0
    began = waiting = time.perf_counter()
    with closing(inputs):
        for i, (x, labels) in enumerate(inputs):
            data_s += time.perf_counter() - waiting
            losses.append(net.step(x, labels.to(net.device), first + i) * len(labels))
            samples += len(labels)
            waiting = time.perf_counter()
    loss = float(torch.stack(losses).sum()) / samples  # on CUDA this waits for the device, before the clock is read
    compute_s = time.perf_counter() - began - data_s
    return Outcome(net.get_weights().flat, net.get_momentum(), samples, loss, data_s, compute_s)


@lru_cache(maxsize=1)
def replica(config: TrainConfig, classes: int) -> Net:
    """Make the network of a run, or take the one that this process made before: its weights are set anew each round.

    Args:
        config: of the run.
        classes: number of outputs.

    Raises:
        ConfigError: the network cannot be made, or there is no such device.
    """
    return Net(build(config.net, classes, config.crop, config.seed), config.solver, _device(config.device))


def check_device(name: str, sc: SparkContext) -> None:
    """Make sure that workers have a device, before anything is prepared for it.

    Args:
        name: cpu, cuda or auto.
        sc: whose workers.

    Raises:
        ConfigError: they have not.
    """
    if name == "cuda":
        with readable_errors():
            sc.parallelize([name], 1).map(_device).map(str).collect()


def _device(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device cuda: torch finds no CUDA device in the worker; use --device cpu")
    context = TaskContext.get()
    gpus = context.resources().get("gpu") if context else None
    return torch.device(f"cuda:{gpus.addresses[0]}" if gpus else "cuda:0")


def _torch_seed(seed: int, worker: int, round_number: int) -> int:
    return int(np.random.SeedSequence((seed, 4, worker, round_number)).generate_state(1, np.uint64)[0])
