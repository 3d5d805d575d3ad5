"""What every layout gives: a plan of parts, and a function that reads the samples of one part on an executor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparknet.loaders.source import File


class Sample(NamedTuple):
    """One image as it is stored.

    Attributes:
        key: its name, unique in the set.
        data: the encoded image.
        label: class index, 0-based; None where the layout does not say.
        url: the file that holds it.
        offset: where its bytes begin in that file. `data` can be read again as a range of it.
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
    """

    url: str
    start: int
    length: int
    samples: int | None = None
    prefix: str = ""
    label: int | None = None
    end_mark: bool = True


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to read a source.

    Attributes:
        layout: name of the layout.
        parts: what there is to read, in order. Each sample lies in exactly one.
        read: reads the samples of a part. Runs on executors: a top-level function.
        class_names: by class index, where the layout itself tells.
    """

    layout: str
    parts: tuple[Part, ...]
    read: Callable[[Part], Iterator[Sample]]
    class_names: tuple[str, ...] = ()


# Looks at a source's files; returns None where they are not in this layout.
Layout = Callable[[Sequence[File]], Plan | None]
