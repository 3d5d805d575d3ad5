"""What a run holds is the same after many rounds as after some: memory, broadcasts, files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sets import TinySet

ROOT = Path(__file__).parents[2]

# How much more there may be than after 50 rounds, in MiB. One that kept its weights somewhere would add 40 each time;
# the last round's may lie in the heap or not, in each process, and a JVM's memory is as large as its collector likes.
MORE = {"driver": 100, "workers": 200, "jvm": 500, "jvm_heap": 120, "spark_blocks": 1, "temporary": 2}
SAME = ("broadcast_files", "persisted", "files")


@pytest.mark.heavy
@pytest.mark.timeout(0)  # as long as it is told to take
def test_a_long_run_holds_no_more_than_a_short_one(tiny: TinySet, tmp_path: Path) -> None:
    """SPARKNET_LONG_RUN is the number of rounds, above 50."""
    (tmp_path / "tmp").mkdir()
    words = ["--train", tiny.train, "--val", tiny.val, "--labels", tiny.val_txt, "--out", tmp_path / "run"]
    words += ["--rounds", os.environ.get("SPARKNET_LONG_RUN", "100")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.long_run", *map(str, words)],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp"), "SPARK_LOCAL_DIRS": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    print(*(" ".join(f"{name} {value:,.0f}" for name, value in one.items()) for one in seen), sep="\n")
    first, *others = seen
    assert first["round"] == 50
    for now in others:
        assert {name: now[name] - first[name] for name in MORE if now[name] - first[name] > MORE[name]} == {}, now
        assert {name: now[name] for name in SAME} == {name: first[name] for name in SAME}
