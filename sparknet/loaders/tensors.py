"""Samples of any tensors: vectors, time series, token ids; several to a sample.

In: a function that reads a part of them. Out: a memory-mapped file for each part on the executors. What
`sparknet.loaders.blocks` is for images.

In a file samples lie one after the other, each as a row of a numpy structured type; so many as fill a piece have a
checksum.
"""

import math
import reprlib
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from pyspark import SparkContext, cloudpickle

from sparknet.errors import SampleError, SparkNetError
from sparknet.loaders.cached import Cached, check_limit, new_set_id, written
from sparknet.loaders.stored import Handle, forget_removed
from sparknet.scratch import Room, local_path, remove_executors_orphans, written_whole
from sparknet.session import executor_hosts

Tensors: TypeAlias = Mapping[str, ArrayLike]
"""A sample: numbers, or arrays of them, by name. Each name has the same dtype and shape in all samples of a set."""

Read: TypeAlias = Callable[[Any], Iterable[Tensors]]
"""Gives the samples of a part, the same whenever it is called."""

Fields: TypeAlias = dict[str, tuple[np.dtype, tuple[int, ...]]]
"""Tensors by name: dtype and shape of each."""

_PIECE_BYTES = 64 * 1024

# How much is written between two looks at the room that is left.
_LOOK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class TensorBlock(Handle):
    """Handle of a cached part of n samples.

    Attributes:
        dtype: structured, a field for each tensor of a sample; without fields where n is 0.
        samples: n.
        part: what was read.
        read: the function that read it (a `Read`), pickled by cloudpickle.
    """

    dtype: np.dtype
    samples: int
    part: Any
    read: bytes

    def __len__(self) -> int:
        return self.samples

    @property
    def piece_samples(self) -> int:
        """How many samples are checked together."""
        return _piece_samples(self.dtype)

    @property
    def length(self) -> int:
        """The file's length."""
        return self.samples * self.dtype.itemsize

    def span(self, piece: int) -> slice:
        """Say where in the file a piece lies: as many samples as fill it."""
        size = self.piece_samples * self.dtype.itemsize
        return slice(piece * size, min((piece + 1) * size, self.length))

    def rows(self, data: np.ndarray) -> np.ndarray:
        """Give the samples: (n, bytes of one) uint8."""
        return data.reshape(self.samples, -1)

    def pieces(self) -> Iterator[bytes]:
        """Read the part again."""
        for rows in _packed(self.read, self.part):
            yield rows.tobytes()

    def origin(self, piece: int) -> str:
        """Say which samples a piece holds."""
        size = self.piece_samples
        return f"{_name(self.part)}: samples {piece * size} to {min((piece + 1) * size, self.samples) - 1}"


@dataclass(frozen=True, kw_only=True)
class TensorBlocks(Cached[TensorBlock]):
    """A set of tensors, cached on the executors.

    Attributes:
        dtype: structured, a field for each tensor of a sample.
    """

    dtype: np.dtype

    def __len__(self) -> int:
        return sum(self.counts)


def cache_tensors(
    sc: SparkContext, parts: Iterable[Any], read: Read, *, source: str = "tensors", limit_bytes: int | None = None
) -> TensorBlocks:
    """Read every sample once, into files on the executors.

    Args:
        sc: whose executors.
        parts: names of files, or whatever `read` takes; each becomes a file. Worker i of K gets every K-th of them, so
            there should be several for each, each with samples of all kinds: they are shuffled within a worker's share.
        read: gives the samples of a part, the same whenever it is called: a task that misses a file has it read again.
            It runs on the executors.
        source: what to call the set in messages.
        limit_bytes: the most that cached files, of this set and others, may take on an executor's disks; as much as
            there is where None.

    Raises:
        SampleError: a sample cannot be read or has other tensors than the first, or there is none.
        SessionError: a disk has not the room. What was written is removed.
        ConfigError: the samples take more than limit_bytes; what was written is removed.
    """
    check_limit(limit_bytes)
    parts = list(parts)
    if not parts:
        raise SampleError(f"{source}: no part is named")
    set_id = new_set_id()
    room = Room(
        limit_bytes=limit_bytes,
        files=len(parts),
        hosts=len(executor_hosts(sc)),
        what="tensors",
        less="cache fewer samples",
    )
    build = partial(_write, read=_pickled(read), set_id=set_id, room=room)
    rdd = sc.parallelize(parts, len(parts)).mapPartitionsWithIndex(build)
    handles = written(rdd, set_id, partial(_check_alike, source=source))
    return TensorBlocks(
        rdd=rdd,
        handles=handles,
        sent=sc.broadcast(handles),
        source=source,
        set_id=set_id,
        dtype=next(block.dtype for block in handles if len(block)),
    )


def _write(index: int, parts: Iterable[Any], read: bytes, set_id: str, room: Room) -> Iterator[TensorBlock]:
    """Write a part to its file; give the one handle."""
    forget_removed()
    remove_executors_orphans()
    [part] = parts
    path = local_path(f"{set_id}-{index:05d}.tensors")
    dtype, samples, unlooked = np.dtype([]), 0, _LOOK_BYTES
    checksums = []
    with written_whole(path) as file:
        for rows in _packed(read, part):
            if unlooked >= _LOOK_BYTES:
                room.check_rest(path, rows.nbytes)
                unlooked = 0
            piece = rows.tobytes()
            file.write(piece)
            checksums.append(zlib.crc32(piece))
            dtype, samples, unlooked = rows.dtype, samples + len(rows), unlooked + len(piece)
    yield TensorBlock(
        name=path.name,
        path=str(path),
        host=socket.gethostname(),
        checksums=np.array(checksums, np.uint32),
        dtype=dtype,
        samples=samples,
        part=part,
        read=read,
    )


def _packed(read: bytes, part: Any) -> Iterator[np.ndarray]:
    """Read a part into rows, a piece at a time: (m,) of the part's structured type. The memory is used again."""
    rows, filled, first = np.empty(0, np.dtype([])), 0, Fields()
    for number, sample in enumerate(_read(read, part)):
        try:
            fields = _described(sample)
        except ValueError as error:
            raise SampleError(f"{_name(part)}: sample {number} {error}") from error
        if not number:
            dtype, first = _dtype(fields), fields
            # Zeros, for what lies between fields is written too.
            rows = np.zeros(_piece_samples(dtype), dtype)
        elif fields != first:
            raise SampleError(f"{_name(part)}: sample {number} has {_text(fields)}, but sample 0 {_text(first)}")
        for name, value in sample.items():
            rows[name][filled] = value
        filled += 1
        if filled == len(rows):
            yield rows
            filled = 0
    if filled:
        yield rows[:filled]


def _read(pickled: bytes, part: Any) -> Iterator[Tensors]:
    try:
        read: Read = cloudpickle.loads(pickled)
    except Exception as error:
        raise SampleError(
            f"the function that reads samples cannot be loaded on {socket.gethostname()}: {_why(error)}; have its "
            "module sent to the executors (SparkContext.addPyFile)"
        ) from error
    number = 0
    try:
        for sample in read(part):
            yield sample
            number += 1
    except SparkNetError:
        raise
    except Exception as error:
        raise SampleError(f"{_name(part)}: sample {number} cannot be read: {_why(error)}") from error


def _described(sample: Tensors) -> Fields:
    """Find the tensors that a sample has.

    Raises:
        ValueError: it is not of numbers by name, or has none.
    """
    if not isinstance(sample, Mapping) or not all(isinstance(name, str) and name for name in sample):
        raise ValueError(f"is {reprlib.repr(sample)}; give tensors by name, such as {{'x': array, 'y': 3}}")
    fields = Fields()
    for name, value in sample.items():
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"has {name} of lists of several lengths; a tensor has one shape") from error
        if array.dtype.kind not in "biufc":
            raise ValueError(f"has {name} of dtype {array.dtype}; a tensor holds numbers")
        fields[name] = array.dtype.newbyteorder("="), array.shape
    if not any(math.prod(shape) for _, shape in fields.values()):
        raise ValueError("holds nothing")
    return fields


def _dtype(fields: Fields) -> np.dtype:
    """Make the type of a row: the same for the same tensors in any order."""
    return np.dtype([(name, *fields[name]) for name in sorted(fields)], align=True)


def _piece_samples(dtype: np.dtype) -> int:
    return max(_PIECE_BYTES // dtype.itemsize, 1)


def fields_of(dtype: np.dtype) -> Fields:
    """Take a row's type apart."""
    return {name: (field[0].base, field[0].shape) for name, field in (dtype.fields or {}).items()}


def _check_alike(blocks: tuple[TensorBlock, ...], source: str) -> None:
    filled = [block for block in blocks if len(block)]
    if not filled:
        raise SampleError(f"{source}: none of {len(blocks)} parts has a sample")
    first = filled[0]
    for block in filled:
        if block.dtype != first.dtype:
            raise SampleError(
                f"{_name(block.part)}: its samples have {_text(fields_of(block.dtype))}, but those of "
                f"{_name(first.part)} {_text(fields_of(first.dtype))}"
            )


def _text(fields: Fields) -> str:
    """List tensors for a person."""
    return ", ".join(f"{name}: {base} {list(shape) or ''}".rstrip() for name, (base, shape) in fields.items())


def _pickled(read: Read) -> bytes:
    pickled: bytes = cloudpickle.dumps(read)  # type: ignore[no-untyped-call]
    return pickled


def _why(error: Exception) -> str:
    """Tell an error of a person's own code on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _name(part: Any) -> str:
    """Name a part for a person, on one line."""
    text = " ".join(str(part).split())
    return text if len(text) <= 200 else reprlib.repr(text)
