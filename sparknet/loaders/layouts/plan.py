"""What every layout gives: a plan of parts, and a function that reads the samples of one part on an executor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from sparknet.loaders.source import Listing, read_range


class Sample(NamedTuple):
    """One image as it is stored.

    Attributes:
        key: its name, unique in the set.
        data: the encoded image.
        label: class index, 0-based; None where the layout does not say.
        url: the file that holds it.
        offset: where in that file it is found again; where its bytes begin, unless the layout says otherwise.
    """

    key: str
    data: bytes
    label: int | None
    url: str
    offset: int


class Part(NamedTuple):
    """A range of a file that one task reads from start to end.

    Attributes:
        url: the file.
        start: first byte.
        length: number of bytes.
        samples: how many samples the range must give, which is checked; None where only reading it tells.
        prefix: goes before the name of each sample to make its key.
        label: class index of every sample in the range; None where it differs or is unknown.
        end_mark: whether the range ends as a tar must.
        tar: where the tar begins that the range is of.
    """

    url: str
    start: int
    length: int
    samples: int | None = None
    prefix: str = ""
    label: int | None = None
    end_mark: bool = True
    tar: int = 0


def part_bytes(total: int) -> int:
    """Choose the size of a source's parts, from its own alone: every machine gets the same ones.

    Args:
        total: of the source, bytes.
    """
    return min(max(total // 64, 1024 * 1024), 64 * 1024 * 1024)


class Readable(Protocol):
    """What one task reads from start to end: a `Part`, or a layout's own."""

    @property
    def url(self) -> str:
        """Names it in errors."""

    @property
    def length(self) -> int:
        """Bytes of its samples, and of what lies between them."""

    @property
    def samples(self) -> int | None:
        """How many it must give, which is checked; None where only reading it tells."""


Again: TypeAlias = Callable[[str, Sequence[tuple[int, int]]], Iterator[bytes]]
"""Reads samples of a file again: its URL, and the (offset, length of its data) of each, in rising order."""


def read_ranges(url: str, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Read samples again that lie in a file as they are.

    Raises:
        SourceError: the file cannot be read, or is shorter than it was.
    """
    for offset, size in places:
        yield read_range(url, offset, size)


P = TypeVar("P", bound=Readable)


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[P]):
    """How to read a source.

    Attributes:
        layout: name of the layout.
        parts: what there is to read, in order. Each sample lies in exactly one.
        read: reads the samples of a part. Runs on executors: a top-level function.
        again: reads samples again. On executors too.
        class_names: by class index, where the layout itself tells.
        labelled: whether the samples have classes, also where only reading all of them tells how many there are.
    """

    layout: str
    parts: tuple[P, ...]
    read: Callable[[P], Iterator[Sample]]
    again: Again = read_ranges
    class_names: tuple[str, ...] = ()
    labelled: bool = False


# Looks at what a source holds; returns None where that is not in this layout.
Layout = Callable[[Listing], Plan[Any] | None]
