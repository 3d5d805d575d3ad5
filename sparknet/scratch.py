"""Scratch: files on a local disk that go with the application that made them.

A folder's name says which process owns it. So whoever comes next can tell what a killed one has left, and takes that
away; what belongs to a process that runs, to another machine's or to another container's, is left alone.
"""

import atexit
import hashlib
import importlib.util
import os
import re
import shutil
import socket
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from rich.filesize import decimal

from sparknet.errors import ConfigError, SessionError

_NAME = re.compile(r"sparknet-(?P<place>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})-(?P<pid>\d+)-(?P<started>\d+)(-.*)?")

# Where an executor's local directories may lie: beside each other, or, under a standalone master's worker, each in a
# folder of its executor in one of its worker.
_EXECUTORS = ("blockmgr-*", "spark-*/executor-*/blockmgr-*")


def local_directories(conf: Mapping[str, str]) -> list[Path]:
    """List where a Spark that is started here keeps what it puts on disk.

    Args:
        conf: Spark's settings, as for `sparknet.session.start`.
    """
    named = os.environ.get("SPARK_LOCAL_DIRS") or conf.get("spark.local.dir") or _spark_default("spark.local.dir")
    return [Path(root.strip()) for root in (named or tempfile.gettempdir()).split(",")]


def own_folder(root: Path) -> Path:
    """Make a folder that belongs to this process, which takes it away itself when it ends.

    Args:
        root: where.

    Raises:
        SessionError: it cannot be made.
    """
    with _written(root):
        return Path(tempfile.mkdtemp(prefix=f"{_owner_name(os.getpid())}-", dir=root))


def local_path(name: str) -> Path:
    """Say where this executor keeps a file that may vanish with it.

    Its folder lies in one of Spark's local directories, chosen by the name: where there are several disks, all are
    used. It belongs to the executor, not to the Python worker that asks; where there is none, to this process.

    Args:
        name: of the file.
    """
    roots = local_roots()
    folder = roots[zlib.crc32(name.encode()) % len(roots)] / _owner_name(_executor())
    if _executor() == os.getpid():
        _remove_at_exit(folder)
    return folder / name


@cache
def _remove_at_exit(folder: Path) -> None:
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def local_roots() -> list[Path]:
    """List Spark's local directories, as its executors give them to their Python workers."""
    return [Path(root) for root in os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")]


def remove_files(prefix: str) -> None:
    """Remove this executor's files whose names begin so."""
    for root in local_roots():
        for path in (root / _owner_name(_executor())).glob(f"{prefix}*"):
            path.unlink(missing_ok=True)


def remove_orphans(root: Path) -> None:
    """Remove the folders in one where the processes that owned them are gone.

    Args:
        root: where folders were made by `own_folder`.
    """
    for folder in root.glob("sparknet-*"):
        if _is_orphan(folder.name):
            shutil.rmtree(folder, ignore_errors=True)  # another's, or being removed by another just now


def remove_executors_orphans() -> None:
    """Remove what executors of this host that are gone have left in the local directories of their cluster."""
    for root in local_roots():
        for pattern in _EXECUTORS:
            depth = pattern.count("/") + 1
            if root.match(pattern):
                for sibling in root.parents[depth - 1].glob(pattern):
                    remove_orphans(sibling)


@dataclass(frozen=True, kw_only=True)
class Room:
    """How much a set's files may take on an executor's disk.

    Attributes:
        limit_bytes: the most for all files of the executor; as much as there is where None.
        files: of the set, of about the same length.
        hosts: that they are written on, as far as is known.
        what: is in them; for a person.
        less: how it could take less; for a person.
    """

    limit_bytes: int | None = None
    files: int = 1
    hosts: int = 1
    what: str = "images"
    less: str = "use --cache jpeg or a smaller --side"

    def check(self, path: Path, prefix: str, need_bytes: int) -> None:
        """Make sure, before a file is written, that there is room for it; and on a single host for the whole set.

        Args:
            path: of the file.
            prefix: of the names of the set's files.
            need_bytes: the file's length, as far as is known.

        Raises:
            SessionError: the disk has not the room.
            ConfigError: the limit does not allow it.
        """
        written = sum(_sizes(f"{prefix}*")) if self.hosts == 1 else 0
        rest = max(self.files * need_bytes - written, need_bytes) if self.hosts == 1 else need_bytes
        self._check(path, rest, f"the {self.what} need about {decimal(rest + written)}")

    def check_rest(self, path: Path, need_bytes: int) -> None:
        """Make sure that there is still room, while a file is written.

        Args:
            path: of the file.
            need_bytes: what is still to be written, as far as is known.

        Raises:
            SessionError, ConfigError: as for `check`.
        """
        self._check(path, need_bytes, f"this partition's {self.what} need another {decimal(need_bytes)} at least")

    def _check(self, path: Path, need_bytes: int, need: str) -> None:
        there = next(folder for folder in path.parents if folder.exists())
        free = shutil.disk_usage(there).free
        if need_bytes > free:
            raise SessionError(
                f"{path.parent}: {decimal(free)} free, but {need}; make room there, let Spark's local directory "
                f"(spark.local.dir, SPARK_LOCAL_DIRS) lie on a larger disk, or {self.less}"
            )
        if self.limit_bytes is not None and need_bytes + (used := sum(_sizes("*"))) > self.limit_bytes:
            raise ConfigError(
                f"the cache may take {decimal(self.limit_bytes)} on a host and has {decimal(used)}, but {need}; raise "
                f"--cache-limit-gb, or {self.less}"
            )


def _sizes(pattern: str) -> Iterator[int]:
    """The lengths of this executor's files."""
    for root in local_roots():
        for path in (root / _owner_name(_executor())).glob(pattern):
            with suppress(OSError):  # it may be removed or renamed just now
                yield path.stat().st_size


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a name of this attempt, and rename it when it is whole.

    Attempts at the same task may run at the same time (speculation), and a killed one leaves no half a file behind
    under the real name. Its folder is made where missing.

    Raises:
        SessionError: it cannot be written.
    """
    attempt = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with _written(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with attempt.open("wb") as file:
                yield file
            attempt.replace(path)
    finally:
        with suppress(OSError):  # renamed, or there is not even its folder
            attempt.unlink()


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SessionError(
            f"{path}: cannot be written: {error.strerror or error}; make room there, or let Spark's local directory "
            "(spark.local.dir, SPARK_LOCAL_DIRS) lie on another disk"
        ) from error


def _spark_default(key: str) -> str | None:
    """Look a setting up in Spark's own file of defaults, as its launcher does."""
    home = os.environ.get("SPARK_HOME") or str(getattr(importlib.util.find_spec("pyspark"), "origin", ""))
    folder = os.environ.get("SPARK_CONF_DIR") or f"{home.removesuffix('/__init__.py')}/conf"
    with suppress(OSError):
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines()
        found = [match[1] for line in lines if (match := re.fullmatch(rf"\s*{re.escape(key)}[\s=:]+(\S+)\s*", line))]
        return found[-1] if found else None
    return None


def _owner_name(process: int) -> str:
    return f"sparknet-{_place()}-{_boot()}-{process}-{_started(process) or 0}"


def _is_orphan(name: str) -> bool:
    owner = _NAME.fullmatch(name)
    if owner is None or owner["place"] != _place() or not _boot().strip("0"):
        return False
    return owner["boot"] != _boot() or _started(int(owner["pid"])) != int(owner["started"])


@cache
def _place() -> str:
    """Where process IDs mean the same: a machine, or a container on it."""
    with suppress(OSError):
        return hashlib.sha256(f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:8]
    return "0" * 8


@cache
def _boot() -> str:
    """When the machine was started; process IDs begin anew then. Zeros where the system does not say."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return "0" * 8


def _started(process: int) -> int | None:
    """When a process began, in ticks since the boot: no two that have the same ID began at the same."""
    fields = _fields(process)
    return int(fields[19]) if fields else None


@cache
def _executor() -> int:
    """The process that starts this Python worker's daemon: the executor's JVM; this one where there is none."""
    process = os.getpid()
    while process > 1:
        fields = _fields(process)
        if fields is None:
            break
        process = int(fields[1])
        with suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() == "java":
                return process
    return os.getpid()


def _fields(process: int) -> list[str] | None:
    """What Linux says of a process, from its state on (`man proc_pid_stat`, field 3); None where there is none."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return None
