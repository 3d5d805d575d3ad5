"""A small run in a process of its own, which kills itself at a given moment: `python -m tests.train.killed_run`."""

import argparse
import dataclasses
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparknet.loaders.blocks import cache
from sparknet.loaders.labels import read_labels
from sparknet.loaders.samples import read_samples
from sparknet.session import start
from sparknet.train import checkpoint
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.exchange.spark import SparkExchange
from sparknet.train.trainer import RoundMetrics, train
from tests.sets import SYNSETS

CONFIG = TrainConfig(
    net="tests.train.networks:dropout",
    crop=12,
    batch=7,
    workers=2,
    tau=2,
    rounds=24,
    test_every=3,
    checkpoint_every=2,
    keep_checkpoints=2,
    mirror=True,
    scale=1 / 64,
    solver=SolverConfig(base_lr=0.05, weight_decay=0.001, policy="step", gamma=0.5, step_size=19),
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_nth(
    n: int,
    strike: Callable[..., Any],
    original: Callable[..., Any] = lambda *_: None,
    when: Callable[..., bool] = lambda *_, **__: True,
) -> Callable[..., Any]:
    """Wrap a function: its n-th call, of those that count, strikes first."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += when(*args, **kwargs)
        if calls == n and when(*args, **kwargs):
            strike(*args, **kwargs)
        return original(*args, **kwargs)

    return wrapped


def soon(delay_s: float) -> None:
    timer = threading.Timer(delay_s, die)
    timer.daemon = True
    timer.start()


def half_a_file(path: Path, data: bytes) -> None:
    path.with_name(f"{path.name}.part").write_bytes(data[: len(data) // 2])
    die()


_write = checkpoint._write


def stop_at_the_copy(path: Path, data: bytes) -> None:
    if path.parent.name == "run":
        assert path.name == "weights.safetensors"
        die()
    _write(path, data)


def patch(owner: object, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def half_a_folder(path: Path, **_: Any) -> None:
    next(path.iterdir()).unlink()
    die()


def prepare(moment: str, n: int, delay_s: float) -> Callable[[RoundMetrics], None]:
    """See to it that this process is killed.

    Args:
        moment: `never`; `round` (at a round's end); `middle` (of a round) and `evaluate`, so many seconds after it has
            begun; `write` (half of a file); `between` (a checkpoint's renaming and the copy of its weights);
            `remove` (half of an old checkpoint).
        n: which of those, from 1 when the process starts.
        delay_s: seconds.

    Returns:
        To be called at each round's end.
    """
    if moment == "middle":
        patch(SparkExchange, "train", on_nth(n, lambda *_, **__: soon(delay_s), SparkExchange.train))
    elif moment == "evaluate":
        patch(SparkExchange, "evaluate", on_nth(n, lambda *_: soon(delay_s), SparkExchange.evaluate))
    elif moment == "write":
        patch(checkpoint, "_write", on_nth(n, half_a_file, checkpoint._write))
    elif moment == "between":
        patch(checkpoint, "save", on_nth(n, lambda *_: patch(checkpoint, "_write", stop_at_the_copy), checkpoint.save))
    elif moment == "remove":
        old = shutil.rmtree
        patch(shutil, "rmtree", on_nth(n, half_a_folder, old, lambda path, **_: path.name.endswith(".old.part")))
    return on_nth(n if moment == "round" else 0, lambda _: die())


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("train", "val", "labels", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=CONFIG.rounds)
    parser.add_argument("--moment", default="never")
    parser.add_argument("--n", type=int, default=1)
    parser.add_argument("--delay-s", type=float, default=0.0)
    given = parser.parse_args()
    sc = start("local[2,4]", conf={"spark.ui.enabled": "false"})
    sc.setLogLevel("OFF")
    train_set = cache(read_samples(sc, str(given.train)).shuffled(seed=3, partitions=4), 16)
    labels = read_labels(str(given.labels), None, SYNSETS)
    val_set = cache(read_samples(sc, str(given.val), labels=labels, class_names=SYNSETS), 16)
    on_round = prepare(given.moment, given.n, given.delay_s)
    resume = (given.out / "config.json").exists()
    config = dataclasses.replace(CONFIG, rounds=given.rounds)
    train(train_set, val_set, config, out=given.out, resume=resume, on_round=on_round)


if __name__ == "__main__":
    main()
