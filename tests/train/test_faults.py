"""Cached images that are lost or damaged in mid-run are made again, and the run ends in the same bits."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from sparknet.java import find_java
from tests.sets import TinySet
from tests.train.faulty_run import FAULTS

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    ours = {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), "SPARK_LOCAL_DIRS": str(folder / "tmp")}
    theirs = {"FAULT_MARK": str(folder / "mark"), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java())}
    return os.environ | ours | theirs


@contextmanager
def running(*words: str, folder: Path, name: str) -> Iterator[Path]:
    """A process of Spark's own, and its log."""
    log = folder / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen([SPARK_CLASS, *words], env=environment(folder), stderr=file, stdout=file)
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A standalone master of this host with two workers of one core."""
    host = socket.gethostbyname("localhost")
    with ExitStack() as stack:
        deploy = "org.apache.spark.deploy"
        words = (f"{deploy}.master.Master", "--host", host, "--port", "0", "--webui-port", "0")
        log = stack.enter_context(running(*words, folder=folder, name="master"))
        url = None
        for _ in range(600):
            if url := re.search(r"Starting Spark master at (spark://\S+)", log.read_text()):
                break
            time.sleep(0.1)
        assert url is not None, log.read_text()
        for name in ("one", "two"):
            of_worker = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir")
            work = str(folder / "tmp" / name)
            worker = running(f"{deploy}.worker.Worker", *of_worker, work, url[1], folder=folder, name=name)
            stack.enter_context(worker)
        yield url[1]


def bits(master: str, train: Path, folder: Path, *faults: str) -> dict[str, str]:
    words = [sys.executable, "-m", "tests.train.faulty_run", master, str(train), *faults]
    done = subprocess.run(words, cwd=ROOT, env=environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["fault"]: line["bits"] for line in lines}


@pytest.fixture(scope="module")
def undisturbed(tiny: TinySet, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bits of a run on one executor to which nothing happens."""
    return bits("local[2,4]", tiny.train, tmp_path_factory.mktemp("local"), "none")["none"]


@pytest.mark.parametrize("kind", ["local-cluster", "standalone"])
def test_the_same_bits_whatever_is_lost(kind: str, undisturbed: str, tiny: TinySet, tmp_path: Path) -> None:
    with ExitStack() as stack:
        master = "local-cluster[2,1,1024]" if kind == "local-cluster" else stack.enter_context(standalone(tmp_path))
        found = bits(master, tiny.train, tmp_path, *FAULTS)
    assert {path.name for path in tmp_path.glob("mark-*")} == {f"mark-{fault}" for fault in FAULTS if FAULTS[fault]}
    assert found == dict.fromkeys(FAULTS, undisturbed)
    left = [path for path in (tmp_path / "tmp").rglob("*") if path.suffix in (".rgb", ".npy")]
    assert left == []
