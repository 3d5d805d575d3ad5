"""Spark tried out. In: a master and settings. Out: its slots, and what tasks saw where they ran.

A task looks at its own surroundings: whether training's modules can be imported, and what is free on the cache's disk.
"""

import importlib
import os
import shutil
import socket
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparknet.errors import SparkNetError, StoppedError
from sparknet.scratch import local_directories

if TYPE_CHECKING:
    from rich.console import Console

_NEEDED_THERE = ("torch", "sparknet.loaders.blocks", "sparknet.train.worker")


class Space(NamedTuple):
    """A folder on a host, and what its disk has free; or why it cannot be written to."""

    host: str
    folder: str
    free_bytes: int
    fault: str = ""


class Executor(NamedTuple):
    """What a task saw where it ran.

    Attributes:
        python: its interpreter.
        torch: the version; empty where there is none.
        fault: why training's modules cannot be imported; empty where they can.
        space: the cache's disk.
    """

    python: str
    torch: str
    fault: str
    space: Space


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a Spark that started said.

    Attributes:
        master: its URL.
        slots: how many tasks run at the same time.
        executors: of one task a slot.
        fault: why executors could not be asked; empty where they were.
        log: where Spark's log is then.
    """

    master: str
    slots: int
    executors: tuple[Executor, ...] = ()
    fault: str = ""
    log: str = ""


def ask_spark(master: str | None, conf: Sequence[str], screen: "Console") -> Answers:
    """Start Spark, ask its executors, stop it.

    Args:
        master: Spark's master URL; the default one where None.
        conf: Spark's settings, `KEY=VALUE` each.
        screen: to say so on.

    Raises:
        StoppedError: Ctrl-C was pressed.
        SparkNetError: it does not start; which one, and why, as for `sparknet.command.running_spark`.
    """
    from pyspark import SparkContext

    from sparknet.command import running_spark
    from sparknet.session import readable_errors, worker_slots

    try:
        with running_spark(master, conf, screen) as sc:
            slots = worker_slots(sc)
            with readable_errors():
                seen = sc.parallelize(range(slots), max(slots, 1)).map(look_around).collect()
            return Answers(master=str(sc.master), slots=slots, executors=tuple(seen))
    except StoppedError:
        raise
    except SparkNetError as error:
        started = SparkContext._active_spark_context
        if started is None or started._jsc.sc().isStopped():
            raise
        # What failed was the first task.
        log = "; ".join(getattr(error, "__notes__", ()))
        answers = Answers(master=str(started.master), slots=worker_slots(started), fault=str(error), log=log)
        started.stop()
        return answers


def look_around(_: int) -> Executor:
    """Say what there is where this task runs."""
    name, fault = "", ""
    try:
        for name in _NEEDED_THERE:
            importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - a broken package may raise anything, also what is no Exception
        fault = f"cannot import {name}: {described(error)}"
    torch = str(getattr(sys.modules.get("torch"), "__version__", ""))
    # As for sparknet.scratch.local_roots, which may be beyond import here.
    root = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir())
    return Executor(sys.executable, torch, fault, space_in(root))


def local_space(conf: Sequence[str]) -> Space:
    """Look at the disk that the executors of a local master would use, were it started.

    Args:
        conf: as for `ask_spark`; the environment goes before it.
    """
    return space_in(str(local_directories(dict(pair.partition("=")[::2] for pair in conf))[0]))


def space_in(folders: str) -> Space:
    """Write a file to a folder, or to the nearest above it that is there, and look at its disk.

    Args:
        folders: the first of several counts, with commas between them.
    """
    folder = Path(folders.split(",")[0]).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    host = socket.gethostname()
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"some")
        return Space(host, str(folder), shutil.disk_usage(there).free)
    except OSError as error:
        return Space(host, str(folder), 0, error.strerror or str(error))


def described(error: BaseException) -> str:
    """Put an error into one line, with its kind where the line does not tell it. A JVM's holds a stack trace."""
    text = textwrap.shorten(str(error), 300, placeholder=" ...")
    return text if text and isinstance(error, (ImportError, SparkNetError)) else f"{type(error).__name__}: {text}"
