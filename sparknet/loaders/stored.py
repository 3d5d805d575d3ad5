"""Files that vanish with their executor and can be made again. In: a handle. Out: what its file holds, checked.

A file is a row of pieces, each with a checksum in the handle, which Spark keeps and sends about. The handle knows how
the pieces are made: a task that misses the file, because its executor is gone or another host's, makes it again; so
does one that finds a piece of it damaged.
"""

import logging
import socket
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparknet.errors import ShardError
from sparknet.scratch import local_path, written_whole

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Handle(ABC):
    """Names a file and knows how it is made.

    Attributes:
        name: of the file, without its folder.
        path: where it was written, on `host`.
        host: the machine that wrote it.
        checksums: (pieces,) uint32, CRC-32 of each piece.
    """

    name: str
    path: str
    host: str
    checksums: np.ndarray

    @abstractmethod
    def __len__(self) -> int:
        """How many samples are in it."""

    @property
    @abstractmethod
    def length(self) -> int:
        """The file's length, bytes."""

    @abstractmethod
    def span(self, piece: int) -> slice:
        """Say where in the file a piece lies."""

    @abstractmethod
    def rows(self, data: np.ndarray) -> Any:
        """Give the samples the form that they are read in.

        Args:
            data: (length,) uint8, the mapped file.
        """

    @abstractmethod
    def pieces(self) -> Iterator[bytes | memoryview]:
        """Make the pieces again, in order."""

    @abstractmethod
    def origin(self, piece: int) -> str:
        """Say, for a person, what a piece was made from."""


class Stored:
    """A file, mapped: no byte is read before it is asked for.

    Each piece is checked when it is first asked for. One that is damaged has the file made again; whoever asks sees
    whole pieces.

    Args:
        handle: whose file.
        path: of the file.
        checked: whether it has just been written from what was checked.
    """

    def __init__(self, handle: Handle, path: Path, checked: bool = False) -> None:
        self.handle = handle
        self._map(path, checked)

    def _map(self, path: Path, checked: bool) -> None:
        self.path, self.identity = path, _identity(path)
        # torch takes only what may be written to. What is written to a private mapping does not reach the file.
        # As a plain array: a memmap's own slices take longer than the copy of a crop.
        self._data = np.asarray(np.memmap(path, np.uint8, mode="c", shape=(self.handle.length,)))
        self._rows = self.handle.rows(self._data)
        self._unchecked = np.full(len(self.handle.checksums), not checked)

    def row(self, number: int) -> Any:
        """Give a sample that is a piece, in the form of `Handle.rows`; it is to be left as it is."""
        if self._unchecked[number]:
            self._check(number)
        return self._rows[number]

    def rows(self, pieces: np.ndarray) -> Any:
        """Give all samples in the form of `Handle.rows`, of which only those in these pieces may be read.

        Args:
            pieces: their numbers, each as often as one likes.
        """
        for piece in pieces[self._unchecked[pieces]].tolist():
            self._check(piece)
        return self._rows

    def raw(self, piece: int) -> np.ndarray:
        """Give a piece's bytes, (size,) uint8."""
        if self._unchecked[piece]:
            self._check(piece)
        return self._data[self.handle.span(piece)]

    def _check(self, piece: int) -> None:
        handle = self.handle
        if self._unchecked[piece] and zlib.crc32(self._data[handle.span(piece)].data) != handle.checksums[piece]:
            _log.warning("%s: damaged; the file is made again, for %s", self.path, handle.origin(piece))
            with suppress(OSError):  # where it is another executor's, it may not be ours to remove
                self.path.unlink()
            self._map(_make_again(handle), checked=True)
        self._unchecked[piece] = False


class Chain:
    """Stored files end to end: samples that are counted through.

    Args:
        handles: in order; those without a sample are passed over.
    """

    def __init__(self, handles: Sequence[Handle]) -> None:
        handles = [handle for handle in handles if len(handle)]
        self.stored = [open_stored(handle) for handle in handles]
        self._starts = np.cumsum([0] + [len(handle) for handle in handles])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Say which file each sample is in, and its number there.

        Args:
            indices: (n,) of samples in the chain.
        """
        file_of = np.searchsorted(self._starts, indices, side="right") - 1
        return file_of, indices - self._starts[file_of]


# What this process has mapped: a Python worker serves one task after the other.
_mapped: dict[str, Stored] = {}


def open_stored(handle: Handle) -> Stored:
    """Open a file or take it as this process has opened it before; make it again where missing.

    Raises:
        SourceError, DecodeError: the source no longer gives what it gave.
        SessionError: the file cannot be written.
    """
    for path in _places(handle):
        known = _mapped.get(handle.name)
        if known is not None and known.identity == _identity(path):
            return known
        with suppress(OSError):  # it may have been removed
            if path.stat().st_size == handle.length:
                _mapped[handle.name] = Stored(handle, path)
                return _mapped[handle.name]
    _mapped[handle.name] = Stored(handle, _make_again(handle), checked=True)
    return _mapped[handle.name]


def _places(handle: Handle) -> Iterator[Path]:
    """Where its file may lie: a share asks for each of its files in every round, and mostly finds the first."""
    if handle.host == socket.gethostname():
        yield Path(handle.path)
    yield local_path(handle.name)


def forget_removed() -> None:
    """Let go of files that are removed: as long as they are mapped, they take up room."""
    for name, stored in list(_mapped.items()):
        if _identity(stored.path) != stored.identity:
            del _mapped[name]


def _identity(path: Path) -> tuple[Path, int, int] | None:
    with suppress(OSError):
        status = path.stat()
        return path, status.st_ino, status.st_mtime_ns
    return None


def _make_again(handle: Handle) -> Path:
    path = local_path(handle.name)
    count = 0
    with written_whole(path) as file:
        for piece in handle.pieces():
            if count == len(handle.checksums) or zlib.crc32(piece) != handle.checksums[count]:
                break
            file.write(piece)
            count += 1
        else:
            if count == len(handle.checksums):
                return path
        raise ShardError(
            f"{handle.origin(min(count, len(handle.checksums) - 1))} is not what it was when it was cached; it has "
            f"changed since, or {socket.gethostname()} has other versions of Python's libraries than {handle.host}"
        )
