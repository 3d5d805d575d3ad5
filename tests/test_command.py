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
SIGNS = {"starting": "tmp/sparknet-*.log", "opening": "tmp/blockmgr*"}


@pytest.fixture(scope="module")
def a_run(tiny: TinySet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to evaluate."""
    folder = tmp_path_factory.mktemp("run")
    words = f"train {tiny.train} --net tests.train.networks:plain --side 16 --crop 14 --batch 8 --rounds 1 --out run"
    code = "from sparknet.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, *words.split()], cwd=folder, env=environment, check=True)
    return folder / "run"


def begun(folder: Path, words: str, phase: str) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a shell does."""
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.slowed_command", phase, str(folder / "mark"), *words.split()],
        cwd=ROOT,
        env=os.environ
        | {"TMPDIR": str(folder / "tmp"), "SPARK_LOCAL_DIRS": str(folder / "tmp"), "PYTHONPATH": str(ROOT)},
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
    # The JVM's native libraries remove what they unpack at their next start.
    left = [path.name for path in (tmp_path / "tmp").iterdir() if not path.name.startswith(("hsperfdata", "liblz4"))]
    if phase == "opening":  # a JVM that is ended while it makes its folders may leave one, with nothing in it
        assert [path for path in (tmp_path / "tmp").rglob("spark-*/**") if path.is_file()] == []
        left = [name for name in left if not name.startswith("spark-")]
    assert left == []
    assert [path.name for path in tmp_path.rglob("*.part")] == []
    assert not (tmp_path / "sheet.png").exists()
    if resumable:
        load_settings(run)
        found, damaged = newest(run)
        assert damaged == []
        assert (found.rounds if found else 0) == rounds


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
