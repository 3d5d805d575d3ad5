"""A task that is lost in mid-round and tried again, and tasks that change places: the bits do not."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyspark import RDD, SparkContext, TaskContext

from sparknet.loaders.block import Block
from sparknet.loaders.blocks import Blocks
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.exchange import Round
from sparknet.train.exchange.spark import SparkExchange
from tests.train.networks import KILL
from tests.train.serial import fresh

CONFIG = TrainConfig(
    net="tests.train.networks:Mortal",
    crop=12,
    batch=7,
    workers=2,
    tau=3,
    rounds=4,
    mirror=True,
    scale=1 / 64,
    solver=SolverConfig(base_lr=0.05, weight_decay=0.01),
)
MODES: list[Any] = ["kept", "reset", "averaged"]

# A round's task of one worker, and what takes its place.
Task = Callable[[int, Iterable[list[Block]]], Iterator[object]]
Wrap = Callable[[int, int, Iterable[list[Block]], Task], Iterator[object]]


class Wrapped:
    """Shares whose tasks are run by a function of ours: (round, worker, share, task) to the task's results."""

    def __init__(self, shares: RDD[list[Block]], wrap: Wrap) -> None:
        self._shares, self._wrap, self._round = shares, wrap, -1
        self.context, self.unpersist = shares.context, shares.unpersist

    def mapPartitionsWithIndex(self, task: Task) -> RDD[object]:  # noqa: N802
        self._round += 1
        return self._shares.mapPartitionsWithIndex(partial(_run, self._wrap, self._round, task))


def _run(wrap: Wrap, round_number: int, task: Task, worker: int, shares: Iterable[list[Block]]) -> Iterator[object]:
    yield from wrap(round_number, worker, shares, task)


class Bits(NamedTuple):
    """What a round came to."""

    weights: bytes
    momentum: list[bytes]
    losses: list[float]
    lost: list[bool]


Undisturbed = Callable[[TrainConfig], list[Bits]]


def bits(done: Round) -> Bits:
    return Bits(
        done.weights.flat.tobytes(),
        [momentum.tobytes() for momentum in done.momentum],
        [report.loss for report in done.reports],
        [report.momentum_lost for report in done.reports],
    )


def all_rounds(
    exchange: SparkExchange, config: TrainConfig, before: Callable[[int], None] = lambda _: None
) -> list[Bits]:
    """Run all rounds and close; momentum of the last is brought back. `before` is called before each."""
    try:
        weights, momentum, seen = fresh(config).get_weights().copy(), tuple[np.ndarray, ...](), []
        for number in range(config.rounds):
            before(number)
            done = exchange.train(number, weights, momentum, collect_momentum=number + 1 == config.rounds)
            weights, momentum = done.weights, done.momentum
            seen.append(bits(done))
        return seen
    finally:
        exchange.close()


@pytest.fixture(scope="module")
def mean(train_blocks: Blocks) -> np.ndarray:
    return train_blocks.mean_image()


@pytest.fixture(scope="module")
def rounds(train_blocks: Blocks, mean: np.ndarray) -> Callable[..., list[Bits]]:
    def run(
        config: TrainConfig, before: Callable[[int], None] = lambda _: None, wrap: Wrap | None = None
    ) -> list[Bits]:
        """Run all rounds; momentum of the last is brought back. `before` is called before each, with its number."""
        exchange = SparkExchange(train_blocks, config, mean)
        if wrap is not None:
            exchange._shares = Wrapped(exchange._shares, wrap)  # type: ignore[assignment]
        return all_rounds(exchange, config, before)

    return run


@pytest.fixture(scope="module")
def undisturbed(rounds: Callable[..., list[Bits]]) -> Undisturbed:
    return cache(rounds)


@pytest.fixture
def at_round(sc: SparkContext, tmp_path: Path) -> Iterator[Callable[..., Callable[[int], None]]]:
    """Make what kills a worker at a call of its network in one round's first attempt; see `networks.Mortal`."""

    def make(round_number: int, worker: int, call: int) -> Callable[[int], None]:
        order = json.dumps({"worker": worker, "call": call, "folder": str(tmp_path)})
        return lambda number: sc.setLocalProperty(KILL, order if number == round_number else "")

    yield make
    sc.setLocalProperty(KILL, "")


def attempts(folder: Path) -> dict[str, int]:
    """Process of each attempt by its name."""
    return {path.name: int(path.read_text()) for path in folder.iterdir()}


@pytest.mark.parametrize("round_number", [0, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_task_killed_after_it_changed_its_weights_is_tried_again_with_the_same_bits(
    mode: Any,
    round_number: int,
    rounds: Callable[..., list[Bits]],
    undisturbed: Undisturbed,
    at_round: Callable[..., Callable[[int], None]],
    tmp_path: Path,
) -> None:
    config = replace(CONFIG, momentum_mode=mode)
    # At its third call the network has taken two of its three steps.
    disturbed = rounds(config, at_round(round_number, worker=1, call=3))
    processes = attempts(tmp_path)
    assert set(processes) == {"attempt-0", "attempt-0-changed-by-2-steps", "attempt-1"}
    assert processes["attempt-0"] == processes["attempt-0-changed-by-2-steps"] != processes["attempt-1"]
    assert disturbed == undisturbed(config)
    assert len({done.weights for done in disturbed}) == 4
    assert len(disturbed[-1].momentum) == {"kept": 2, "reset": 0, "averaged": 1}[mode]
    assert disturbed[-1].lost == [False, False]


def _dies_when_done(
    folder: Path, round_number: int, worker: int, shares: Iterable[list[Block]], task: Task
) -> Iterator[object]:
    yield from task(worker, shares)
    context = TaskContext.get()
    assert context is not None
    if (round_number, worker) == (2, 0):
        (folder / f"attempt-{context.attemptNumber()}").write_text(str(os.getpid()))
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("mode", MODES)
def test_a_task_killed_when_all_was_done_but_told_is_tried_again_with_the_same_bits(
    mode: Any, rounds: Callable[..., list[Bits]], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    # Its momentum for the next round is written already; that of this round must still be there.
    config = replace(CONFIG, momentum_mode=mode)
    disturbed = rounds(config, wrap=partial(_dies_when_done, tmp_path))
    assert set(attempts(tmp_path)) == {"attempt-0", "attempt-1"}
    assert len(set(attempts(tmp_path).values())) == 2
    assert disturbed == undisturbed(config)


def _note(folder: Path, round_number: int, worker: int) -> Path:
    return folder / f"{round_number}-{worker}"


def _noted(
    folder: Path, slower: int | None, round_number: int, worker: int, shares: Iterable[list[Block]], task: Task
) -> Iterator[object]:
    """Note the process; the slower worker ends well after the other, so that Spark has the other's process first."""
    yield from task(worker, shares)
    _note(folder, round_number, worker).write_text(str(os.getpid()))
    if worker == slower:
        while not _note(folder, round_number, 1 - worker).exists():
            time.sleep(0.01)
        time.sleep(0.5)


def processes_of(folder: Path) -> list[tuple[int, int]]:
    """Of both workers, by round."""
    return [
        (int(_note(folder, number, 0).read_text()), int(_note(folder, number, 1).read_text()))
        for number in range(CONFIG.rounds)
    ]


@pytest.mark.heavy
@pytest.mark.parametrize("mode", MODES)
def test_workers_that_swap_processes_give_the_same_bits(
    mode: Any, rounds: Callable[..., list[Bits]], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = replace(CONFIG, momentum_mode=mode)
    seen = []
    for slower in (0, 1):
        folder = tmp_path / str(slower)
        folder.mkdir()
        seen.append(rounds(config, wrap=partial(_noted, folder, slower)))
    # Which process comes next is Spark's choice: that they did swap is for the test below to make sure of.
    assert seen[0] == seen[1] == undisturbed(config)


class InOneProcess:
    """Shares whose tasks run one after another in one process: what one worker leaves there, the other finds."""

    def __init__(self, shares: RDD[list[Block]], folder: Path) -> None:
        self._shares, self._folder = shares, folder
        self.context, self.unpersist = shares.context, shares.unpersist

    def mapPartitionsWithIndex(self, task: Task) -> RDD[object]:  # noqa: N802
        return self._shares.coalesce(1).mapPartitions(partial(_one_by_one, self._folder, task))


def _one_by_one(folder: Path, task: Task, shares: Iterable[list[Block]]) -> Iterator[object]:
    for worker, blocks in enumerate(shares):
        yield from task(worker, [blocks])
        with (folder / str(worker)).open("a") as file:
            file.write(f"{os.getpid()}\n")


@pytest.mark.parametrize("mode", MODES)
def test_both_workers_in_one_process_give_the_same_bits(
    mode: Any, train_blocks: Blocks, mean: np.ndarray, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = replace(CONFIG, momentum_mode=mode)
    exchange = SparkExchange(train_blocks, config, mean)
    exchange._shares = InOneProcess(exchange._shares, tmp_path)  # type: ignore[assignment]
    together = all_rounds(exchange, config)
    one, other = ((tmp_path / worker).read_text().split() for worker in "01")
    assert one == other
    assert len(one) == config.rounds
    assert together == undisturbed(config)


@pytest.mark.heavy
@pytest.mark.parametrize("mode", MODES)
def test_new_processes_for_every_round_give_the_same_bits(
    mode: Any, rounds: Callable[..., list[Bits]], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = replace(CONFIG, momentum_mode=mode)

    def kill_idle(number: int) -> None:
        if number:
            for worker in (0, 1):
                os.kill(int(_note(tmp_path, number - 1, worker).read_text()), signal.SIGKILL)
            time.sleep(0.2)  # else Spark may hand a task to a process that is dying; it would try again, and come out

    killed = rounds(config, kill_idle, partial(_noted, tmp_path, None))
    processes = [process for pair in processes_of(tmp_path) for process in pair]
    assert len(set(processes)) == len(processes) == 8
    assert killed == undisturbed(config)
