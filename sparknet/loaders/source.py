"""List and read by URL. In: a URL that fsspec opens. Out: files with their sizes, and ranges of their bytes.

Whatever a URL names is read by ranges, on the driver and on the executors alike: nothing is copied to disk first.
A range that comes back short is an error, never a shorter sample.
"""

import io
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import fsspec

from sparknet.errors import SourceError

# What one request may bring into memory. The inner tars of ILSVRC2012 (about 140 MB) are one request each.
CHUNK_BYTES = 256 * 1024 * 1024

# Protocols whose files exist in the memory of one process only, so that no executor could open them.
_PROCESS_LOCAL = {"memory", "generic", "reference"}

_EXTRAS = {"s3": "s3", "s3a": "s3", "hdfs": "hdfs", "webhdfs": "hdfs"}

_T = TypeVar("_T")


class File(NamedTuple):
    """A file at a URL: its full URL (a plain path where it is local) and its size in bytes."""

    url: str
    size: int


def list_files(url: str, suffixes: tuple[str, ...] = ()) -> list[File]:
    """List every file at or below a URL.

    Args:
        url: a file or a folder, as fsspec spells it.
        suffixes: keep only the names that end in one of these; all where empty. A URL that is itself a file is
            kept whatever its name.

    Returns:
        All files, sorted by URL.

    Raises:
        SourceError: the URL does not exist, may not be read, or holds no such file.
    """
    fs, path = _resolve(url)

    def find() -> dict[str, dict[str, Any]]:
        info = fs.info(path)
        if info["type"] == "directory":
            return dict(fs.find(path, detail=True))
        return {path: info}

    found = _guarded(url, find)
    files = [
        File(_full_url(fs, name), info["size"])
        for name, info in found.items()
        if info["type"] == "file" and (name == path or name.endswith(suffixes or ("",)))
    ]
    if not files:
        kind = f"no {' or '.join(suffixes)} file" if suffixes else "no file"
        raise SourceError(f"{url}: {kind} there; name a file, or a folder that holds some")
    if any(file.size is None for file in files):
        raise SourceError(f"{url}: the server does not say the file's size; ranges of it cannot be read")
    return sorted(files)


def read_range(url: str, start: int, length: int) -> bytes:
    """Read bytes [start, start + length) of a file in one request.

    Raises:
        SourceError: the file cannot be read, or ends before the range does.
    """
    fs, path = _resolve(url)
    data: bytes = _guarded(url, lambda: fs.cat_file(path, start=start, end=start + length)) if length else b""
    if len(data) != length:
        raise SourceError(f"{url}: short read at offset {start}: {len(data)} bytes came of the {length} asked for")
    return data


def read_text(url: str) -> str:
    """Read a whole UTF-8 text file.

    Raises:
        SourceError: the file cannot be read, or is not text.
    """
    [file] = list_files(url)
    try:
        return read_range(url, 0, file.size).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{url}: not a text file (byte {error.start} is not UTF-8)") from error


def open_scan(url: str) -> io.BufferedIOBase:
    """Open a file for looking here and there (the headers of a tar): small reads, little read ahead.

    Raises:
        SourceError: the file cannot be opened.
    """
    fs, path = _resolve(url)
    file: io.BufferedIOBase = _guarded(url, lambda: fs.open(path, "rb", block_size=64 * 1024))
    return file


class RangeReader(io.RawIOBase):
    """A range of a file as a file of its own, fetched a chunk a request as it is read.

    Args:
        url: the file.
        start: offset of the range, bytes.
        length: length of the range, bytes.
        chunk_bytes: the most that one request fetches, and that is held in memory.
    """

    def __init__(self, url: str, start: int, length: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._url, self._start, self._length, self._chunk_bytes = url, start, length, chunk_bytes
        self._position = 0
        self._chunk, self._chunk_at = memoryview(b""), 0

    def readable(self) -> bool:
        """Always: a range is for reading."""
        return True

    def seekable(self) -> bool:
        """Always: seeking moves the position and fetches nothing."""
        return True

    def tell(self) -> int:
        """Position from the start of the range, bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position. Past the end is allowed, and reads nothing there."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the current chunk, fetching the next where it is used up.

        Raises:
            SourceError: the file ends before the range does, or cannot be read.
        """
        within = self._position - self._chunk_at
        if not 0 <= within < len(self._chunk):
            size = min(self._chunk_bytes, self._length - self._position)
            if size <= 0:
                return 0
            self._chunk = memoryview(read_range(self._url, self._start + self._position, size))
            self._chunk_at, within = self._position, 0
        piece = self._chunk[within : within + len(buffer)]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)


def _resolve(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    protocol = url.split("://", 1)[0] if "://" in url else "file"
    if protocol in _PROCESS_LOCAL:
        raise SourceError(
            f"{url}: {protocol}:// exists in one process only, executors cannot see it; use a file, s3, hdfs"
        )
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install 'sparknet[{extra}]'" if extra else str(error)
        raise SourceError(f"{url}: no client for {protocol}:// is installed; {remedy}") from error
    except ValueError as error:
        raise SourceError(f"{url}: {error}") from error
    return fs, path


def _full_url(fs: fsspec.AbstractFileSystem, path: str) -> str:
    full: str = fs.unstrip_protocol(path)
    return full.removeprefix("file://")


def _guarded(url: str, action: Callable[[], _T]) -> _T:
    """Run one act on a file system, and name the URL and the cause where it fails."""
    try:
        return action()
    except FileNotFoundError as error:
        raise SourceError(f"{url}: no such file or folder") from error
    except PermissionError as error:
        raise SourceError(f"{url}: not permitted to read it") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{url}: {type(error).__name__}: {' '.join(str(error).split())}") from error
