"""How much of a plain training loop's speed is left inside Spark: both, in turns, in one run.

    python scripts/bench_main_job.py TRAIN.tar --side 32 --net cifar10_quick --rounds 30

The plain loop is what one would write without SparkNet: arrays in memory, torch with all cores as its threads, K
replicas trained one after the other and averaged, no Spark. SparkNet trains the same network on the same images with
the same K, tau and batch. Prints one JSON object; compare the ratio, not the images/s.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time

import numpy as np
import torch
from pyspark import SparkContext

from sparknet.loaders.blocks import Blocks, cache
from sparknet.loaders.samples import read_samples
from sparknet.session import start
from sparknet.train.config import TrainConfig
from sparknet.train.models import build, published
from sparknet.train.trainer import train


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a training set that tells its classes (ILSVRC2012_img_train.tar)")
    parser.add_argument("--net", default="cifar10_quick")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tau", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30, help="of each turn")
    parser.add_argument("--turns", type=int, default=3, help="of each of the two")
    arguments = parser.parse_args()
    config = dataclasses.replace(
        published(arguments.net), workers=arguments.workers, tau=arguments.tau, rounds=arguments.rounds
    )
    sc = start(app_name="bench_main_job")
    if arguments.rounds < 20:
        print(f"{arguments.rounds} rounds measure the start of the workers, not their speed; 30 do", file=sys.stderr)
    try:
        print(json.dumps(compare(sc, arguments.source, arguments.side, config, arguments.turns)))
    finally:
        sc.stop()


def compare(sc: SparkContext, source: str, side: int, config: TrainConfig, turns: int) -> dict[str, object]:
    """Run both in turns, after a short turn of each that is not counted."""
    samples = read_samples(sc, source)
    blocks = cache(samples.shuffled(config.seed), side)
    handles = blocks.handles
    images = np.ascontiguousarray(np.concatenate([block.images() for block in handles]))
    labels = np.concatenate([block.labels for block in handles])
    mean = blocks.mean_image()
    brief = dataclasses.replace(config, rounds=2)
    plain(images, labels, mean, brief, len(blocks.class_names))
    sparknet(blocks, brief)
    plain_speeds, sparknet_speeds = [], []
    for _ in range(turns):
        plain_speeds.append(plain(images, labels, mean, config, len(blocks.class_names)))
        sparknet_speeds.append(sparknet(blocks, config))
    return {
        "plain_images_per_s": [round(speed) for speed in plain_speeds],
        "sparknet_images_per_s": [round(speed) for speed in sparknet_speeds],
        "ratio": round(statistics.median(sparknet_speeds) / statistics.median(plain_speeds), 3),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }


def sparknet(blocks: Blocks, config: TrainConfig) -> float:
    """Train by SparkNet; images/s."""
    return train(blocks, None, config).images_per_s


def plain(images: np.ndarray, labels: np.ndarray, mean: np.ndarray, config: TrainConfig, classes: int) -> float:
    """Train by the plain loop; images/s."""
    torch.set_num_threads(os.cpu_count() or 1)
    net = build(config.net, classes, config.crop, config.seed)
    parameters = list(net.parameters())
    multipliers = [2.0 if name.endswith("bias") else 1.0 for name, _ in net.named_parameters()]
    centre = torch.from_numpy(mean).permute(2, 0, 1)
    shares = [np.arange(k, len(images), config.workers) for k in range(config.workers)]
    velocities = [[torch.zeros_like(p) for p in parameters] for _ in shares]
    weights = [p.detach().clone() for p in parameters]
    rng = np.random.default_rng(0)
    net.train()
    began = time.perf_counter()
    for _ in range(config.rounds):
        sums = [torch.zeros_like(p) for p in parameters]
        for share, velocity in zip(shares, velocities, strict=True):
            with torch.no_grad():
                for p, w in zip(parameters, weights, strict=True):
                    p.copy_(w)
            for _ in range(config.tau):
                chosen = rng.choice(share, config.batch, replace=config.batch > len(share))
                x = (torch.from_numpy(images[chosen]).permute(0, 3, 1, 2).float() - centre).contiguous()
                net.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(net(x), torch.from_numpy(labels[chosen])).backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    for p, v, multiplier in zip(parameters, velocity, multipliers, strict=True):
                        if p.grad is not None:
                            gradient = p.grad.add(p, alpha=config.solver.weight_decay)
                            v.mul_(config.solver.momentum).add_(gradient, alpha=config.solver.base_lr * multiplier)
                            p.sub_(v)
            with torch.no_grad():
                for total, p in zip(sums, parameters, strict=True):
                    total.add_(p)
        weights = [total / len(shares) for total in sums]
    return config.rounds * config.tau * config.batch * config.workers / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
