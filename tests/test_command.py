"""Ctrl-C, as a terminal sends it: to every process of the command."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparknet.train.checkpoint import load_settings
from tests.sets import TinySet


def begun(folder: Path, tiny: TinySet) -> subprocess.Popen[str]:
    """Start a training that would last for hours, in a process group of its own, as a shell does."""
    command = [
        *(str(Path(sys.executable).parent / "sparknet"), "train", str(tiny.train)),
        *("--val", str(tiny.val), "--val-labels", str(tiny.val_txt), "--net", "tests.train.networks:plain"),
        *("--side", "16", "--crop", "14", "--batch", "8", "--tau", "2", "--rounds", "100000", "--workers", "2"),
        *("--test-every", "3", "--checkpoint-every", "2", "--out", str(folder / "run"), "--master", "local[2,4]"),
    ]
    (folder / "tmp").mkdir()
    root = Path(__file__).parent.parent
    environment = os.environ | {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(root)}
    return subprocess.Popen(
        command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def in_training(folder: Path) -> bool:
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.exists() and metrics.read_text().count("\n") >= 5


def spark_is_starting(folder: Path) -> bool:
    return any((folder / "tmp").iterdir())


def group_is_empty(group: int) -> bool:
    """Whether no process of a group is left but those that have ended."""
    states = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return not [line for line in states.splitlines() if line.split()[0] == str(group) and "Z" not in line.split()[1]]


def wait_until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail(f"waited in vain for: {what}")


@pytest.mark.heavy
@pytest.mark.parametrize("phase", [spark_is_starting, in_training])
def test_ctrl_c_ends_cleanly(phase: Callable[[Path], bool], tiny: TinySet, tmp_path: Path) -> None:
    process = begun(tmp_path, tiny)
    try:
        wait_until(lambda: phase(tmp_path) or process.poll() is not None, phase.__name__)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1:] in ([], ["sparknet: stopped"])
    assert "Traceback" not in errors
    wait_until(lambda: group_is_empty(process.pid), "the end of the JVM and its workers")
    assert [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("sparknet")] == []
    if phase is in_training:
        load_settings(tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").rglob("*.part")] == []


@pytest.mark.heavy
def test_a_second_ctrl_c_ends_at_once(tiny: TinySet, tmp_path: Path) -> None:
    process = begun(tmp_path, tiny)
    try:
        wait_until(lambda: in_training(tmp_path) or process.poll() is not None, "training")
        for _ in range(2):
            os.kill(process.pid, signal.SIGINT)
        process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130
    wait_until(lambda: group_is_empty(process.pid), "the end of the JVM and its workers")
