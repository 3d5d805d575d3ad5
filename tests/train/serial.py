"""What training on K workers comes to, worked out in one process: the measure for every exchange."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sparknet.loaders.block import Block, write_images
from sparknet.loaders.convert import ToTensor
from sparknet.loaders.minibatch import Share
from sparknet.train.config import TrainConfig
from sparknet.train.models import build
from sparknet.train.net import Net
from sparknet.train.solver import Multipliers, learning_rate
from sparknet.train.worker import train_round


def fresh(config: TrainConfig, classes: int = 3) -> Net:
    return Net(build(config.net, classes, config.crop, config.seed), config.solver)


def noise_block(folder: Path, n: int, side: int = 16, classes: int = 3, seed: int = 0) -> Block:
    """A block of n random images, made without Spark."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, side, side, 3), np.uint8)
    return write_images(folder / f"noise-{seed}-{n}-{side}.rgb", images, rng.integers(0, classes, n))


@dataclass
class State:
    """After a round: the averaged weights, and each worker's momentum (None for zeros) for the next."""

    weights: np.ndarray
    momenta: list[np.ndarray | None]


def start(config: TrainConfig) -> State:
    return State(fresh(config).get_weights().flat.copy(), [None] * config.workers)


def next_round(
    state: State,
    number: int,
    shares: Sequence[list[Block]],
    config: TrainConfig,
    mean: np.ndarray | None,
    colour: np.ndarray | None = None,
) -> State:
    """Run the workers one after another, each on a net of its own, and average in plain numpy."""
    weights, momenta, samples = [], [], []
    for worker, blocks in enumerate(shares):
        share = Share(blocks, config.seed, worker)
        momentum = state.momenta[worker]
        outcome = train_round(fresh(config), share, state.weights, momentum, number, config, mean, colour)
        weights.append(outcome.weights.copy())
        momenta.append(outcome.momentum)
        samples.append(outcome.samples)
    share_of = np.array(samples, np.float64)[:, None]
    average = (np.array(weights, np.float64) * share_of).sum(0) / share_of.sum()
    kept: list[np.ndarray | None]
    if config.momentum_mode == "kept":
        kept = list(momenta)
    elif config.momentum_mode == "reset":
        kept = [None] * len(momenta)
    else:
        together = (np.array(momenta, np.float64) * share_of).sum(0) / share_of.sum()
        kept = [together.astype(momenta[0].dtype)] * len(momenta)
    return State(average.astype(state.weights.dtype), kept)


def plain_sgd(blocks: list[Block], config: TrainConfig, mean: np.ndarray | None) -> list[np.ndarray]:
    """SGD on one worker's share with no round in it: a plain loop over minibatches, written without our solver.

    Returns:
        The weights after every tau iterations.
    """
    torch.set_num_threads(config.threads)
    net = fresh(config)  # for its layout alone: where tensors lie in memory can change bits
    module = net.module.train()
    parameters = dict(module.named_parameters())
    multipliers = getattr(module, "multipliers", {})
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
    after = []
    iterations = config.rounds * config.tau
    share = Share(blocks, config.seed, 0)
    batches = share.minibatches(0, iterations, batch=config.batch, augmentation=config.augmentation)
    for iteration, minibatch in enumerate(batches):
        x = ToTensor(mean, config.scale)(minibatch)
        loss = torch.nn.functional.cross_entropy(module(x), torch.from_numpy(minibatch.labels))
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        rate = learning_rate(config.solver, iteration)
        with torch.no_grad():
            for (name, w), gradient in zip(parameters.items(), gradients, strict=True):
                lr, decay = multipliers.get(name, Multipliers())
                whole = torch.add(gradient, w, alpha=config.solver.weight_decay * decay)
                velocity[name] = torch.add(velocity[name] * config.solver.momentum, whole, alpha=rate * lr)
                w.copy_(w - velocity[name])
        if (iteration + 1) % config.tau == 0:
            after.append(np.concatenate([t.detach().double().numpy().ravel() for t in module.state_dict().values()]))
    return after
