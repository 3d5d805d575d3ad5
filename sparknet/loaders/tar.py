"""Members of a tar, read in place. In: a file and a range of it that holds tar members. Out: members and their bytes.

`tarfile` does the parsing. What it passes over in silence is checked here: a tar that is cut off between two members,
or whose next header is damaged or was never written, ends for `tarfile` like a whole one.
"""

import io
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from sparknet.errors import ShardError, SourceError

_BLOCK = tarfile.BLOCKSIZE

# Zeros fill a tar up to a multiple of its record: 10 KiB where nobody asked for more.
_PADDING_LIMIT = 1024 * 1024

# What tarfile raises at odd headers; the last two where one claims a size that no machine has.
_DAMAGE = (tarfile.TarError, ValueError, OverflowError, MemoryError)


class Member(NamedTuple):
    """One entry of a tar that is not a folder.

    `offset` is where its data begin in the file that holds the tar, `size` their length, both in bytes. `header` is
    where its first header begins. Links and devices have no data of their own: their size is 0. `link` is the name of
    the member before it that a hard link stands for.
    """

    name: str
    offset: int
    size: int
    header: int
    link: str = ""


def scan(file: io.IOBase, url: str, base: int = 0, end_mark: bool = True) -> Iterator[Member]:
    """Walk the headers of a tar, seeking over the data.

    Args:
        file: positioned anywhere; its offset 0 is the tar's.
        url: names the file in errors.
        base: offset of `file` in the file at the URL, bytes; members and errors speak of the latter.
        end_mark: whether the range ends with the tar's end-of-archive mark. A run of members cut out of a larger
            tar has none.

    Yields:
        Every member in order, but folders, and what macOS puts beside a file (`._` before its name).

    Raises:
        ShardError: not a tar, or damaged, or cut off: in a header, in a member's data, or between members.
        SourceError: the file cannot be read.
    """
    try:
        length = file.seek(0, io.SEEK_END)
        file.seek(0)
        try:
            tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - owns nothing
        except _DAMAGE as error:
            file.seek(0)
            head = file.read(16)
            raise _damaged(
                url, f"not a tar at offset {base}: {error}" + (f", it begins with {head!r}" if head else "")
            ) from error
        header = 0
        while True:
            try:
                info = tar.next()
            except _DAMAGE as error:
                raise _damaged(url, f"cut off or damaged at offset {base + tar.offset}: {error}") from error
            if info is None:
                break
            tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every header it has seen; a tar has millions
            if info.size < 0 or tar.offset <= header:
                raise _damaged(url, f"damaged header at offset {base + header}: size {info.size}")
            if tar.offset > length:
                raise _damaged(
                    url,
                    f"cut off at offset {base + length}, within {info.name} "
                    f"(at {base + info.offset_data}, {info.size} bytes)",
                )
            if not info.isdir() and not info.name.rpartition("/")[2].startswith("._"):
                size = info.size if info.isreg() and not info.issparse() else 0
                link = info.linkname if info.islnk() else ""
                yield Member(info.name, base + info.offset_data, size, base + header, link)
            header = tar.offset
        _check_end(file, url, base, header, length, end_mark)
    except OSError as error:
        raise SourceError(f"{url}: cannot be read: {error}") from error


def _damaged(url: str, what: str) -> ShardError:
    return ShardError(f"{url}: {what}; copy or fetch the file again")


def _check_end(file: io.IOBase, url: str, base: int, end: int, length: int, end_mark: bool) -> None:
    file.seek(end)
    mark = file.read(_BLOCK)
    if not mark and not end_mark:
        return
    if len(mark) < _BLOCK:
        raise _damaged(
            url, f"cut off at offset {base + length}: a tar ends with an end-of-archive mark, this one has none"
        )
    if mark != bytes(_BLOCK):
        raise _damaged(url, f"damaged header at offset {base + end}")
    # Where a header was never written (a hole in a download), there are zeros too, and more behind them.
    if length - end > _PADDING_LIMIT or file.read(length).strip(b"\0"):
        raise _damaged(
            url,
            f"end-of-archive mark at offset {base + end}, but the tar goes on to offset {base + length}; "
            "a part of it was never written, or is damaged",
        )


def read_members(file: io.IOBase, url: str, base: int = 0, end_mark: bool = True) -> Iterator[tuple[Member, bytes]]:
    """Walk a tar and read each member's data. Arguments and errors as for `scan`.

    Yields:
        (member, its bytes), in order.
    """
    for member in scan(file, url, base, end_mark):
        file.seek(member.offset - base)
        data = file.read(member.size)
        if len(data) != member.size:
            raise _damaged(
                url,
                f"cut off at offset {member.offset + len(data)}, within {member.name} "
                f"({len(data)} of {member.size} bytes)",
            )
        yield member, data
