"""A long run with a network of 40 MB, and what it holds: `python -m tests.train.long_run`.

Prints a JSON object a line, after every so many rounds. TMPDIR and SPARK_LOCAL_DIRS name a folder of its own.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext

from sparknet.loaders.blocks import cache
from sparknet.loaders.labels import read_labels
from sparknet.loaders.samples import read_samples
from sparknet.session import start
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.trainer import RoundMetrics, train
from tests.sets import SYNSETS

MIB = 1024 * 1024


def holdings(sc: SparkContext, jvm: int) -> dict[str, float]:
    """What the run holds at the moment: in MiB, but for the counts.

    Args:
        sc: the run's.
        jvm: process ID of the driver's JVM, which starts the workers' Python.
    """
    assert sc._jvm is not None
    for _ in range(2):  # what Spark's own cleaner finds unreachable it removes after a collection
        sc._jvm.System.gc()
        time.sleep(0.2)
    runtime = sc._jvm.java.lang.Runtime.getRuntime()
    status = str(sc._jsc.sc().getExecutorMemoryStatus().toString())  # host -> (for Spark's blocks, of that free), bytes
    of_blocks, free = map(int, re.findall(r"\d+", status.partition("->")[2]))
    files = [path.stat().st_size for path in files_below(Path(tempfile.gettempdir()))]
    return {
        "driver": resident("self"),
        "workers": sum(resident(str(process)) for process in descendants(jvm)),
        "jvm": resident(str(jvm)),
        "jvm_heap": (runtime.totalMemory() - runtime.freeMemory()) / MIB,
        "spark_blocks": (of_blocks - free) / MIB,
        "broadcast_files": len(list(Path(sc._temp_dir).iterdir())),
        "persisted": sc._jsc.getPersistentRDDs().size(),
        "files": len(files),
        "temporary": sum(files) / MIB,
    }


def files_below(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


def resident(process: str) -> float:
    """Memory of a process that is not another's too, MiB; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (ProcessLookupError, FileNotFoundError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def descendants(process: int) -> Iterator[int]:
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(ProcessLookupError, FileNotFoundError):  # it may end meanwhile
            for child in map(int, children.read_text().split()):
                yield child
                yield from descendants(child)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("train", "val", "labels", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--every", type=int, default=50)
    given = parser.parse_args()
    sc = start("local[2,4]", conf={"spark.ui.enabled": "false"})
    sc.setLogLevel("OFF")
    assert sc._jvm is not None
    jvm = int(sc._jvm.java.lang.ProcessHandle.current().pid())

    def on_round(metrics: RoundMetrics) -> None:
        if metrics.round % given.every == 0:
            print(json.dumps({"round": metrics.round, "seconds": metrics.seconds, **holdings(sc, jvm)}), flush=True)

    train_set = cache(read_samples(sc, str(given.train)).shuffled(seed=0, partitions=4), 16)
    labels = read_labels(str(given.labels), None, SYNSETS)
    val_set = cache(read_samples(sc, str(given.val), labels=labels, class_names=SYNSETS), 16)
    config = TrainConfig(
        net="tests.train.networks:forty_megabytes",
        crop=16,
        batch=4,
        workers=2,
        tau=1,
        rounds=given.rounds,
        test_every=25,
        checkpoint_every=25,
        solver=SolverConfig(base_lr=1e-6),
    )
    train(train_set, val_set, config, out=given.out, on_round=on_round)


if __name__ == "__main__":
    main()
