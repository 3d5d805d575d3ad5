"""Runs in which cached images are lost or damaged on the way.

`python -m tests.train.faulty_run MASTER TRAIN FAULT...` prints a JSON object a line: the
fault, and the SHA-256 of the weights that the run ended with.
"""

import hashlib
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from pyspark import SparkContext

from sparknet.loaders.block import Block
from sparknet.loaders.blocks import Blocks, cache
from sparknet.loaders.samples import read_samples
from sparknet.scratch import _executor
from sparknet.session import start, worker_slots
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.trainer import RoundMetrics, train

CONFIG = TrainConfig(
    net="tests.train.networks:plain",
    crop=14,
    batch=8,
    workers=2,
    tau=3,
    rounds=6,
    mirror=True,
    momentum_mode="averaged",  # what travels with the weights survives anything
    solver=SolverConfig(base_lr=1e-4),
)


def kill_executor(block: Block) -> None:
    os.kill(_executor(), signal.SIGKILL)


def kill_python(block: Block) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def delete(block: Block) -> None:
    Path(block.path).unlink()


def damage(block: Block) -> None:
    """Every image of it."""
    path = Path(block.path)
    content = bytearray(path.read_bytes())
    content[:: block.side * block.side] = bytes(len(content[:: block.side * block.side]))
    path.write_bytes(content)


FAULTS = {"none": None, "delete": delete, "damage": damage, "python": kill_python, "executor": kill_executor}


def inflict(fault: str, index: int, blocks: list[Block]) -> list[int]:
    """Do it to the first partition's block, at the first attempt: what is killed is tried again."""
    mark = Path(f"{os.environ['FAULT_MARK']}-{fault}")
    act = FAULTS[fault]
    if index == 0 and act is not None and not mark.exists():
        mark.touch()
        act(blocks[0])
    return [0]


def main() -> None:
    master, source, *faults = sys.argv[1:]
    sc = start(master, conf={"spark.ui.enabled": "false", "spark.executor.memory": "600m"})
    sc.setLogLevel("OFF")
    while worker_slots(sc) < CONFIG.workers:
        time.sleep(0.1)
    for fault in faults:
        blocks = cache(read_samples(sc, source).shuffled(seed=0, partitions=4), 16)
        result = train(blocks, None, CONFIG, on_round=partial(on_round, sc=sc, blocks=blocks, fault=fault))
        print(
            json.dumps({"fault": fault, "bits": hashlib.sha256(result.run.weights.flat.tobytes()).hexdigest()}),
            flush=True,
        )
        blocks.close()
        while worker_slots(sc) < CONFIG.workers:  # an executor that was killed comes again
            time.sleep(0.1)


def on_round(metrics: RoundMetrics, sc: SparkContext, blocks: Blocks, fault: str) -> None:
    if metrics.round == 3:
        blocks.rdd.mapPartitionsWithIndex(lambda index, part: inflict(fault, index, list(part))).collect()


if __name__ == "__main__":
    main()
