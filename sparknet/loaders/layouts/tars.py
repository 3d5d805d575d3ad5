"""What the layouts made of tars share: how a tar is divided into parts, and how a part is read."""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from sparknet.errors import ShardError
from sparknet.loaders.layouts.plan import Part, Sample, part_bytes
from sparknet.loaders.source import File, RangeReader, open_scan, read_range
from sparknet.loaders.tar import Member, read_members, scan

_SCAN_BYTES = 64 * 1024

# With more tars than this, they are parallel enough as they are, and the driver walks no headers.
_WHOLE_FROM = 16


def first_member(file: File) -> Member | None:
    """Look at the head of a tar; None where it holds no member.

    Raises:
        ShardError: not a tar.
    """
    with open_scan(file.url) as stream:
        for member in scan(stream, file.url):
            return member
    return None


def divide(files: Sequence[File], sample_of: Callable[[Member], object] = attrgetter("header")) -> tuple[Part, ...]:
    """Divide flat tars into parts for parallel reading.

    Many tars are a part each. A few large ones are cut between samples, which takes a walk over their headers, into
    parts whose number and size follow from the data alone, so that every machine gets the same ones.

    Args:
        files: the tars.
        sample_of: says which sample a member belongs to, where neighbours are one; each is its own if not given.

    Raises:
        ShardError: a tar is damaged, or holds tars.
    """
    if len(files) >= _WHOLE_FROM:
        return tuple(Part(file.url, 0, file.size) for file in files)
    target = part_bytes(sum(file.size for file in files))
    return tuple(part for file in files for part in _cut(file, target, sample_of))


def _cut(file: File, target: int, sample_of: Callable[[Member], object]) -> Iterator[Part]:
    start = count = 0
    with open_scan(file.url) as stream:
        for _, members in itertools.groupby(scan(stream, file.url), key=sample_of):
            for i, member in enumerate(members):
                _check_flat(member, file.url)
                if not i and member.header - start >= target:
                    yield Part(file.url, start, member.header - start, samples=count, end_mark=False)
                    start, count = member.header, 0
            count += 1
    yield Part(file.url, start, file.size - start, samples=count)


def read_tar(part: Part) -> Iterator[Sample]:
    """Read the samples of a part of a tar, or of an inner tar.

    Raises:
        ShardError: damaged, cut off, or holds tars.
        SourceError: the file cannot be read.
    """
    for member, data in members_of(part):
        yield Sample(part.prefix + member.name.removeprefix("./"), data, part.label, part.url, member.offset)


def members_of(part: Part) -> Iterator[tuple[Member, bytes]]:
    """Read the members of a part; a hard link comes with the place and the bytes of what it stands for.

    Raises:
        ShardError: damaged, cut off, or holds tars.
        SourceError: the file cannot be read.
    """
    reader = io.BufferedReader(RangeReader(part.url, part.start, part.length), 64 * 1024)
    earlier: dict[str, Member] | None = None
    for member, data in read_members(reader, part.url, part.start, part.end_mark):
        _check_flat(member, part.url)
        if member.link and earlier is None:
            earlier = _before(part, member)
        if member.link and earlier is not None and member.link in earlier:
            target = earlier[member.link]
            member = member._replace(offset=target.offset, size=target.size)
            data = read_range(part.url, member.offset, member.size)
        if earlier is not None:
            earlier[member.name] = member
        yield member, data


def _before(part: Part, link: Member) -> dict[str, Member]:
    """Find the members before a hard link, also those before its part: few tars have links, and need them."""
    size = link.header - part.tar
    if not size:
        return {}
    stream = io.BufferedReader(RangeReader(part.url, part.tar, size, chunk_bytes=_SCAN_BYTES), _SCAN_BYTES)
    return {member.name: member for member in scan(stream, part.url, part.tar, end_mark=False)}


def _check_flat(member: Member, url: str) -> None:
    # Where a folder holds a nested tar beside flat ones, each inner tar would count as one bad image.
    if member.name.endswith(".tar"):
        raise ShardError(
            f"{url}: {member.name} at offset {member.header} is a tar, not an image; name a tar of tars by itself"
        )
