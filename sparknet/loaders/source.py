"""List and read by URL. In: a URL that fsspec opens. Out: files with their sizes, and ranges of their bytes.

Whatever a URL names is read by ranges, on the driver and on the executors alike: nothing is copied to disk first.
A range that comes back short is an error, never a shorter sample.
"""

import importlib
import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import braceexpand
import fsspec
from fsspec.implementations.local import LocalFileSystem

from sparknet.errors import SourceError

# What one request may bring into memory. The inner tars of ILSVRC2012 (about 140 MB) are one request each.
CHUNK_BYTES = 256 * 1024 * 1024

_SCAN_BYTES = 64 * 1024

# A pair of braces that stands for several names.
_BRACES = re.compile(r"\{[^{}]*(\.\.|,)[^{}]*\}")

# Protocols whose files exist in the memory of one process only, so that no executor could open them.
_PROCESS_LOCAL = {"memory", "generic", "reference"}

_EXTRAS = {"s3": "s3", "s3a": "s3", "hdfs": "hdfs", "webhdfs": "hdfs"}

_T = TypeVar("_T")


class File(NamedTuple):
    """A file at a URL: its full URL (a plain path where it is local) and its size in bytes."""

    url: str
    size: int


class Listing(NamedTuple):
    """What lies at a URL.

    Attributes:
        url: as it was given.
        root: its full URL without a slash at the end, where it is a folder; None where it is a file.
        files: all at or below it, sorted by URL.
    """

    url: str
    root: str | None
    files: tuple[File, ...]

    def ending(self, *suffixes: str) -> tuple[File, ...]:
        """Give the files whose names end so, in any case; a file that was named itself, whatever its name."""
        if self.root is None:
            return self.files
        return tuple(file for file in self.files if file.url.lower().endswith(suffixes))

    def path(self, file: File) -> str:
        """Name a file by its path below the folder."""
        return file.url.rsplit("/", 1)[-1] if self.root is None else file.url.removeprefix(self.root).lstrip("/")


def list_source(url: str) -> Listing:
    """List every file at or below a URL, as `list_files` does; or several files, `train-{000..199}.tar`.

    Raises:
        SourceError: the URL does not exist, may not be read, or holds no file; one of several is not there.
    """
    if _BRACES.search(url):
        return _list_several(url, list(braceexpand.braceexpand(url)))
    files = tuple(list_files(url))
    fs, path = _resolve(url)
    root = _full_url(fs, path).rstrip("/")
    is_folder = all(file.url.startswith(f"{root}/") for file in files)
    return Listing(url, root if is_folder else None, files)


def _list_several(url: str, urls: list[str]) -> Listing:
    """List files by their URLs: a look at each folder, not at each file."""
    wanted = sorted({_full_url(*_resolve(one)) for one in urls})
    there: dict[str, int] = {}
    if url.startswith(("http://", "https://")):  # whose folders cannot be listed
        there = {file.url: file.size for one in wanted for file in list_files(one)}
    else:
        for folder in {one.rpartition("/")[0] for one in wanted}:
            fs, path = _resolve(folder)
            fs.invalidate_cache()
            for entry in _guarded(folder, partial(fs.ls, path, detail=True)):
                there[_full_url(fs, entry["name"])] = entry["size"]
    missing = [one for one in wanted if one not in there]
    if missing:
        raise SourceError(f"{url}: {len(missing)} of {len(wanted)} files are not there; the first is {missing[0]}")
    return Listing(url, wanted[0].rpartition("/")[0], tuple(File(one, there[one]) for one in wanted))


def list_files(url: str) -> list[File]:
    """List every file at or below a URL.

    Args:
        url: a file or a folder, as fsspec spells it.

    Returns:
        All files, sorted by URL.

    Raises:
        SourceError: the URL does not exist, may not be read, or holds no file.
    """
    fs, path = _resolve(url)
    fs.invalidate_cache()  # a listing kept from before may lack what was written since

    def find() -> dict[str, dict[str, Any]]:
        info = fs.info(path)
        return _find_below(fs, path) if info["type"] == "directory" else {path: info}

    found = _guarded(url, find)
    files = [File(_full_url(fs, name), info["size"]) for name, info in found.items() if info["type"] == "file"]
    if not files:
        raise SourceError(f"{url}: no file there; name a file, or a folder that holds some")
    if any(file.size is None for file in files):
        raise SourceError(f"{url}: the server does not say the file's size; ranges of it cannot be read")
    return sorted(files)


def exists(url: str) -> bool:
    """Say whether there is a file or folder.

    Raises:
        SourceError: that cannot be found out.
    """
    fs, path = _resolve(url)
    return bool(_guarded(url, lambda: fs.exists(path)))


def read_range(url: str, start: int, length: int) -> bytes:
    """Read bytes [start, start + length) of a file in one request.

    Raises:
        SourceError: the file cannot be read, or ends before the range does.
    """
    fs, path = _resolve(url)
    data: bytes = _guarded(url, lambda: fs.cat_file(path, start=start, end=start + length)) if length else b""
    if len(data) > length:
        raise SourceError(f"{url}: the server ignores ranges ({len(data)} bytes came of the {length} asked for)")
    if len(data) < length:
        raise SourceError(f"{url}: short read at offset {start}: {len(data)} bytes came of the {length} asked for")
    return data


def read_text(url: str) -> str:
    """Read a whole UTF-8 text file.

    Raises:
        SourceError: the file cannot be read, or is not text.
    """
    files = list_files(url)
    if len(files) > 1:
        raise SourceError(f"{url}: a folder of {len(files)} files; name one text file")
    try:
        return read_range(files[0].url, 0, files[0].size).decode("utf-8-sig")  # as some editors write it
    except UnicodeDecodeError as error:
        raise SourceError(f"{url}: not a text file (byte {error.start} is not UTF-8)") from error


def open_scan(url: str) -> io.BufferedIOBase:
    """Open a file for looking here and there (the headers of a tar): small reads, little read ahead.

    Raises:
        SourceError: the file cannot be opened. A remote one raises it also where it is read.
    """
    fs, path = _resolve(url)
    if isinstance(fs, LocalFileSystem):
        file: io.BufferedIOBase = _guarded(url, lambda: fs.open(path, "rb"))
        return file
    size = list_files(url)[0].size
    return io.BufferedReader(RangeReader(url, 0, size, chunk_bytes=_SCAN_BYTES), _SCAN_BYTES)


class RangeReader(io.RawIOBase):
    """A range of a file as a file of its own, fetched a chunk a request as it is read.

    Args:
        url: the file.
        start: offset of the range, bytes.
        length: length of the range, bytes.
        chunk_bytes: the most that one request fetches, and that is held in memory.
        whole_reads: whether a read that asks for more than that is one request all the same.
    """

    def __init__(
        self, url: str, start: int, length: int, chunk_bytes: int = CHUNK_BYTES, whole_reads: bool = False
    ) -> None:
        self._url, self._start, self._length, self._chunk_bytes = url, start, length, chunk_bytes
        self._whole_reads = whole_reads
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
            wanted = max(self._chunk_bytes, len(buffer)) if self._whole_reads else self._chunk_bytes
            size = min(wanted, self._length - self._position)
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
    if not url.strip():
        raise SourceError("the URL is empty; name a file or a folder")
    if "::" in url:
        raise SourceError(f"{url}: chained URLs (with ::) are not read; name the file itself")
    if protocol in _PROCESS_LOCAL:
        raise SourceError(
            f"{url}: {protocol}:// exists in one process only, executors cannot see it; use a file, s3, hdfs"
        )
    try:
        if protocol == "hdfs":
            importlib.import_module("hdfs_native")  # without it fsspec would look for a JVM's libhdfs
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install 'sparknet[{extra}]'" if extra else str(error)
        raise SourceError(f"{url}: no client for {protocol}:// is installed; {remedy}") from error
    except ValueError as error:
        raise SourceError(f"{url}: {error}") from error
    except Exception as error:  # some clients connect as they are made
        raise SourceError(f"{url}: {_described(error)}") from error
    return fs, path


def _find_below(fs: fsspec.AbstractFileSystem, folder: str) -> dict[str, dict[str, Any]]:
    """Find all files below a folder, links followed."""
    found: dict[str, dict[str, Any]] = {}
    # Asynchronous clients (S3) list all by prefix; find() of the others passes over folders that it may not list.
    entries = fs.find(folder, detail=True).values() if fs.async_impl else fs.ls(folder, detail=True)
    for entry in entries:
        name, kind = entry["name"], entry["type"]
        if kind not in ("file", "directory"):
            try:
                entry = fs.info(name)
            except FileNotFoundError as error:
                if not name.rsplit("/", 1)[-1].startswith("."):  # an editor's lock is such a link
                    raise SourceError(f"{name}: a link that leads nowhere; mend or remove it") from error
                continue
            kind = entry["type"]
        if kind == "directory" and name.rstrip("/") != folder.rstrip("/"):
            found |= _find_below(fs, name)
        else:
            found[name] = entry
    return found


def _full_url(fs: fsspec.AbstractFileSystem, path: str) -> str:
    full: str = fs.unstrip_protocol(path)
    return full.removeprefix("file://")


def _guarded(url: str, action: Callable[[], _T]) -> _T:
    """Run one act on a file system, and name the URL and the cause where it fails."""
    try:
        return action()
    except SourceError:
        raise
    except FileNotFoundError as error:
        # fsspec's HTTP client calls whatever becomes of its first request so; the cause tells.
        cause = error.__cause__
        absent = not isinstance(cause, Exception) or isinstance(cause, FileNotFoundError)
        if absent or getattr(cause, "status", None) == 404:
            raise SourceError(f"{url}: no such file or folder") from error
        raise SourceError(f"{url}: {_described(cause)}") from error
    except PermissionError as error:
        raise SourceError(f"{url}: not permitted to read {error.filename or 'it'}") from error
    except Exception as error:  # every client has errors of its own
        raise SourceError(f"{url}: {_described(error)}") from error


def _described(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
