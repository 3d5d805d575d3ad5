"""Ctrl-C in each phase of each command, as a terminal sends it: to every process of the command."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparknet.train.checkpoint import load_settings, newest
from tests.sets import TinySet

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]

INSPECT = "inspect {train} --sheet {folder}/sheet.png"
TRAIN = """train {train} --val {val} --val-labels {labels} --net tests.train.networks:plain --side 16 --crop 14
    --batch 8 --tau 2 --rounds 100000 --workers 2 --test-every 3 --checkpoint-every 2 --out {folder}/run"""
EVALUATE = "evaluate {run} {val} --labels {labels}"

PHASES = {
    "inspect, starting": INSPECT,
    "inspect, opening": INSPECT,
    "inspect, reading": INSPECT,
    "inspect, sheet": INSPECT,
    "train, importing": TRAIN,
    "train, decoding": TRAIN,
    "train, averaging": TRAIN,
    "train, training": TRAIN,
    "train, evaluating": TRAIN,
    "train, checkpoint": TRAIN,
    "evaluate, decoding": EVALUATE,
    "evaluate, evaluating": EVALUATE,
}


# What shows that a phase before Spark's first task has begun: its JVM is being started; it opens its context.
SIGNS = {"starting": "tmp/sparknet-*/spark.log", "opening": "tmp/sparknet-*/blockmgr*"}


@pytest.fixture(scope="module")
def a_run(tiny: TinySet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to evaluate."""
    folder = tmp_path_factory.mktemp("run")
    words = f"train {tiny.train} --net tests.train.networks:plain --side 16 --crop 14 --batch 8 --rounds 1 --out run"
    code = "from sparknet.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, *words.split()], cwd=folder, env=environment, check=True)
    return folder / "run"


def environment(temporary: Path) -> dict[str, str]:
    ours = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary), "PYTHONPATH": str(ROOT)}
    return os.environ | ours


def begun(folder: Path, words: str, phase: str, temporary: Path | None = None) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a shell does."""
    temporary = temporary or folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.slowed_command", phase, str(folder / "mark"), *words.split()],
        cwd=ROOT,
        env=environment(temporary),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def group_is_empty(group: int) -> bool:
    """Whether no process of a group is left but those that have ended."""
    states = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return not [line for line in states.splitlines() if line.split()[0] == str(group) and "Z" not in line.split()[1]]


def wait_until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(12000):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail(f"waited in vain for: {what}")


@pytest.mark.parametrize("case", PHASES)
def test_ctrl_c_ends_cleanly(case: str, tiny: TinySet, a_run: Path, tmp_path: Path) -> None:
    phase = case.split(", ")[1]
    words = PHASES[case].format(folder=tmp_path, train=tiny.train, val=tiny.val, labels=tiny.val_txt, run=a_run)
    process = begun(tmp_path, f"{words} --master local[2,4]", phase)
    try:

        def is_in_phase() -> bool:
            return any(tmp_path.glob(SIGNS.get(phase, "mark"))) or process.poll() is not None

        wait_until(is_in_phase, phase)
        if phase in ("importing", "starting"):
            time.sleep(0.2)  # into it
        began = time.perf_counter()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
        ended = time.perf_counter() - began
        wait_until(lambda: group_is_empty(process.pid), "the end of the JVM and its workers")
        # Shown by pytest -rP.
        print(f"{case}: ended after {ended:.2f} s, its last process after {time.perf_counter() - began:.2f} s")
    finally:
        process.kill()
    run = tmp_path / "run"
    rounds = {"training": 0, "evaluating": 2, "checkpoint": 2}.get(phase, 0)
    there = (run / "config.json").exists()
    resumable = f"; to go on from round {rounds}: sparknet train --resume {run}" if there else ""
    assert errors.splitlines()[-1:] == [f"sparknet: stopped{resumable}"], errors
    assert bool(resumable) == (case in ("train, training", "train, evaluating", "train, checkpoint"))
    assert "Traceback" not in errors
    assert process.returncode == 130
    # Where a JVM keeps its counters is beyond all settings.
    assert [path.name for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("hsperfdata")] == []
    assert [path.name for path in tmp_path.rglob("*.part")] == []
    assert not (tmp_path / "sheet.png").exists()
    if resumable:
        load_settings(run)
        found, damaged = newest(run)
        assert damaged == []
        assert (found.rounds if found else 0) == rounds


def test_what_a_killed_command_left_goes_at_the_next_start(tiny: TinySet, tmp_path: Path) -> None:
    """And what a running one has stays: of two on one host, neither touches the other's."""
    temporary = tmp_path / "tmp"
    (tmp_path / "other").mkdir()

    def training(folder: Path) -> subprocess.Popen[str]:
        words = TRAIN.format(folder=folder, train=tiny.train, val=tiny.val, labels=tiny.val_txt)
        process = begun(folder, f"{words} --master local[2,4]", "training", temporary)
        wait_until(lambda: (folder / "mark").exists() or process.poll() is not None, "training")
        return process

    def owners_of(pattern: str) -> set[int]:
        return {int(path.relative_to(temporary).parts[0].split("-")[3]) for path in temporary.glob(pattern)}

    killed = training(tmp_path)
    live = training(tmp_path / "other")
    try:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        wait_until(lambda: group_is_empty(killed.pid), "the end of all that was killed")
        assert owners_of("sparknet-*/blockmgr-*/sparknet-*/*.rgb") == {killed.pid, live.pid}
        words = ["-c", "from sparknet.cli import main; main()", "inspect", str(tiny.train)]
        subprocess.run([sys.executable, *words], env=environment(temporary), check=True, capture_output=True)
        assert owners_of("sparknet-*") == {live.pid}
        assert owners_of("sparknet-*/blockmgr-*/sparknet-*/*.rgb") == {live.pid}
        os.killpg(live.pid, signal.SIGINT)
        live.communicate()
        wait_until(lambda: group_is_empty(live.pid), "the end of the JVM and its workers")
        assert list(temporary.glob("sparknet-*")) == []
    finally:
        for process in (killed, live):
            process.kill()


@pytest.mark.parametrize("where", ["around a fork", "in a finalizer"])
def test_ctrl_c_where_python_loses_exceptions(where: str) -> None:
    """It comes a little later: the JVM is started by a fork, and a fork of a large process takes its time."""
    code = """
import os, signal, subprocess, sys
from sparknet.command import _Interrupts
pressed = _Interrupts()
press = lambda: pressed.count or os.kill(os.getpid(), signal.SIGINT)
class Dying:
    def __del__(self):
        press()
        sum(range(10**6))
if sys.argv[1] == "around a fork":
    def hook():
        press()
        sum(range(10**6))
    os.register_at_fork(after_in_parent=hook)
try:
    if sys.argv[1] == "around a fork":
        subprocess.run("true", preexec_fn=int)
    else:
        Dying()
    while True:
        pass
except KeyboardInterrupt:
    print("stopped", pressed.count)
"""
    words = [sys.executable, "-c", code, where]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment(ROOT))
    assert (done.stdout, done.stderr) == ("stopped 1\n", "")


def test_a_second_ctrl_c_ends_at_once(tiny: TinySet, tmp_path: Path) -> None:
    words = TRAIN.format(folder=tmp_path, train=tiny.train, val=tiny.val, labels=tiny.val_txt)
    process = begun(tmp_path, f"{words} --master local[2,4]", "training")
    try:
        wait_until(lambda: (tmp_path / "mark").exists() or process.poll() is not None, "training")
        for _ in range(2):
            os.kill(process.pid, signal.SIGINT)
        process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130
    wait_until(lambda: group_is_empty(process.pid), "the end of the JVM and its workers")
