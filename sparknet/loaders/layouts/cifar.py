"""CIFAR-10 and CIFAR-100 as they are given out, unpacked: the binary batches, or those that Python pickled.

A folder holds a training and a test set: name the files of one, `cifar-10-batches-bin/data_batch_{1..5}.bin`. The names
of the classes lie beside them. Of CIFAR-100 the fine classes are taken.
"""

import io
import pickle
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.layouts.pixels import as_netpbm
from sparknet.loaders.layouts.plan import Part, Plan, Sample
from sparknet.loaders.source import File, Listing, exists, list_files, read_range, read_text

SIDE = 32
_PIXELS = 3 * SIDE * SIDE

_BINARY = re.compile(r"(data_batch_\d|test_batch|train|test)\.bin")
_PICKLED = re.compile(r"data_batch_\d|test_batch|train|test")
_TRAINING = re.compile(r"(data_batch_\d|train)(\.bin)?")

# The most that a batch of 50,000 takes, and a little.
_PICKLE_LIMIT = 256 * 1024 * 1024


def plan(listing: Listing) -> Plan[Part] | None:
    """Recognise batches by their names and what lies beside them.

    Raises:
        SourceError: training and test batches were named together.
        ShardError: a file is no whole number of images.
    """
    folder = listing.files[0].url.rpartition("/")[0]
    names = [file.url.rpartition("/")[2] for file in listing.files]
    for pattern, tables in ((_BINARY, _TEXT_TABLES), (_PICKLED, _PICKLED_TABLES)):
        batches = [file for file, name in zip(listing.files, names, strict=True) if pattern.fullmatch(name)]
        table = next((name for name in tables if batches and exists(f"{folder}/{name}")), None)
        if table is not None and (listing.root is None or len(batches) == len(names) or table in names):
            _check_one_set(listing.url, batches)
            return (_binary if pattern is _BINARY else _pickled)(batches, f"{folder}/{table}")
    return None


# Which lie beside the batches, and tell the classes' names; with CIFAR-100's second.
_TEXT_TABLES = ("batches.meta.txt", "fine_label_names.txt")
_PICKLED_TABLES = ("batches.meta", "meta")


def _check_one_set(url: str, batches: Sequence[File]) -> None:
    names = [file.url.rpartition("/")[2] for file in batches]
    training = [name for name in names if _TRAINING.fullmatch(name)]
    if training and len(training) < len(names):
        test = next(name for name in names if name not in training)
        folder = batches[0].url.rpartition("/")[0]
        several = "data_batch_{1..5}" + training[0][len("data_batch_1") :] if len(training) > 1 else training[0]
        raise SourceError(f"{url}: holds two sets; name one: {folder}/{several} or {folder}/{test}")


def _binary(batches: Sequence[File], table: str) -> Plan[Part]:
    labels = 2 if table.endswith(_TEXT_TABLES[1]) else 1  # of CIFAR-100 the coarse class comes first
    for file in batches:
        if not file.size or file.size % (labels + _PIXELS):
            raise ShardError(
                f"{file.url}: {file.size} bytes are no whole number of images of {labels + _PIXELS}; copy or fetch the "
                "file again"
            )
    return Plan(
        layout="cifar",
        parts=tuple(Part(file.url, 0, file.size, file.size // (labels + _PIXELS)) for file in batches),
        read=partial(read_binary, labels=labels),
        again=read_binary_again,
        class_names=tuple(line.strip() for line in read_text(table).splitlines() if line.strip()),
    )


def read_binary(part: Part, labels: int) -> Iterator[Sample]:
    """Read a binary batch.

    Args:
        part: the file.
        labels: bytes before an image's pixels; the last is its class.
    """
    records = np.frombuffer(read_range(part.url, part.start, part.length), np.uint8).reshape(-1, labels + _PIXELS)
    for number, record in enumerate(records):
        offset = number * len(record) + labels
        yield Sample(_key(part.url, number), _image(record[labels:]), int(record[labels - 1]), part.url, offset)


def read_binary_again(url: str, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Read images of a binary batch again, by the offsets of their pixels."""
    for offset, _ in places:
        yield _image(np.frombuffer(read_range(url, offset, _PIXELS), np.uint8))


def _pickled(batches: Sequence[File], table: str) -> Plan[Part]:
    meta = unpickle(table)
    names = meta.get(b"label_names", meta.get(b"fine_label_names"))
    if not isinstance(names, list):
        raise ShardError(f"{table}: holds no names of classes; copy or fetch the file again")
    return Plan(
        layout="cifar",
        parts=tuple(Part(file.url, 0, file.size) for file in batches),
        read=read_pickled,
        again=read_pickled_again,
        class_names=tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names),
    )


def read_pickled(part: Part) -> Iterator[Sample]:
    """Read a pickled batch; an image's offset is its number in it."""
    batch = unpickle(part.url)
    labels = batch.get(b"labels", batch.get(b"fine_labels"))
    pixels = _pixels(batch, part.url)
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise ShardError(f"{part.url}: {len(pixels)} images have not as many labels; copy or fetch the file again")
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        yield Sample(_key(part.url, number), _image(image), int(label), part.url, number)


def read_pickled_again(url: str, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Read images of a pickled batch again, by their numbers."""
    pixels = _pixels(unpickle(url), url)
    for number, _ in places:
        yield _image(pixels[number])


def _pixels(batch: dict[bytes, Any], url: str) -> np.ndarray:
    pixels = batch.get(b"data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise ShardError(f"{url}: holds no images of 3 x {SIDE} x {SIDE} bytes; copy or fetch the file again")
    return pixels


class _Restricted(pickle.Unpickler):
    """Makes arrays, and what pickle itself knows: numbers, strings, lists, dictionaries. Nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Give the few functions that an array needs."""
        if (module.replace("numpy._core", "numpy.core"), name) in _ALLOWED:
            return _ALLOWED[module.replace("numpy._core", "numpy.core"), name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, encoding: str(text).encode(encoding),
}


def unpickle(url: str) -> dict[bytes, Any]:
    """Read a pickled dictionary of arrays, strings and numbers; whatever else it holds is not made.

    Raises:
        ShardError: it is none, or asks for something else.
        SourceError: it cannot be read.
    """
    [file] = list_files(url)
    if file.size > _PICKLE_LIMIT:
        raise ShardError(f"{url}: {file.size} bytes are more than a batch takes ({_PICKLE_LIMIT})")
    try:
        found = _Restricted(io.BytesIO(read_range(file.url, 0, file.size)), encoding="bytes").load()
    except Exception as error:  # pickle raises whatever the bytes lead it to
        raise ShardError(f"{url}: not a pickled batch: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ShardError(f"{url}: not a pickled batch, but of type {type(found).__name__}")
    return found


def _image(planes: np.ndarray) -> bytes:
    return as_netpbm(planes.reshape(3, SIDE, SIDE).transpose(1, 2, 0))


def _key(url: str, number: int) -> str:
    return f"{url.rpartition('/')[2].removesuffix('.bin')}/{number:05d}"
