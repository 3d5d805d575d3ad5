"""MNIST, and Fashion-MNIST, as they are given out: idx files, gzipped or not.

A folder holds a training and a test set: name the images of one, `train-images-idx3-ubyte.gz`. Their labels lie beside
them, `train-labels-idx1-ubyte.gz`.
"""

import gzip
import io
import re
import struct
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.layouts.pixels import as_netpbm
from sparknet.loaders.layouts.plan import Part, Plan, Sample
from sparknet.loaders.source import File, Listing, RangeReader, exists, list_files

_IMAGES = re.compile(r".*images[-.]idx3-ubyte(\.gz)?")

# What idx files begin with: two zeros, the type (bytes), and the number of dimensions; then the dimensions.
_IMAGES_HEAD, _LABELS_HEAD = struct.Struct(">4s3I"), struct.Struct(">4sI")
_IMAGES_MAGIC, _LABELS_MAGIC = b"\0\0\x08\x03", b"\0\0\x08\x01"

# MNIST's labels take 60 kB.
_LABELS_LIMIT = 64 * 1024 * 1024


def plan(listing: Listing) -> Plan[Part] | None:
    """Recognise files of images by their names.

    Raises:
        SourceError: several sets were named together, or one has no labels.
        ShardError: its files are damaged.
    """
    found = [file for file in listing.files if _IMAGES.fullmatch(file.url.rpartition("/")[2])]
    if not found:
        return None
    if len(found) > 1:
        raise SourceError(
            f"{listing.url}: holds {len(found)} sets; name one: {' or '.join(file.url for file in found)}"
        )
    [file] = found
    labels = _read_labels(file.url)
    return Plan(
        layout="mnist",
        parts=(Part(file.url, 0, file.size, len(labels)),),
        read=read_images,
        again=read_images_again,
        class_names=tuple(str(label) for label in range(int(labels.max()) + 1)),
    )


def read_images(part: Part) -> Iterator[Sample]:
    """Read a file of images; an image's offset is its number in it.

    Raises:
        ShardError: damaged, cut off, or of another number of images than labels.
        SourceError: the file cannot be read.
    """
    labels = _read_labels(part.url)
    count = 0
    for number, image in enumerate(_images(part.url, part.length)):
        if number < len(labels):
            yield Sample(f"{number:05d}", as_netpbm(image), int(labels[number]), part.url, number)
        count = number + 1
    if count != len(labels):
        raise ShardError(f"{part.url}: {count} images, but {len(labels)} labels; copy or fetch the files again")


def read_images_again(url: str, places: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Read images again, by their numbers."""
    [file] = list_files(url)
    wanted = iter(places)
    next_place = next(wanted, None)
    for number, image in enumerate(_images(url, file.size)):
        if next_place is None:
            return
        if number == next_place[0]:
            yield as_netpbm(image)
            next_place = next(wanted, None)


def _images(url: str, size: int) -> Iterator[np.ndarray]:
    with _open(url, size) as stream:
        magic, count, height, width = _IMAGES_HEAD.unpack(_read(stream, url, _IMAGES_HEAD.size))
        if magic != _IMAGES_MAGIC:
            raise ShardError(f"{url}: not an idx file of images, it begins with {magic!r}; copy or fetch it again")
        for _ in range(count):
            yield np.frombuffer(_read(stream, url, height * width), np.uint8).reshape(height, width)
        if _read(stream, url, 0, more=1):
            raise ShardError(f"{url}: goes on after its {count} images; copy or fetch it again")


def _read_labels(images_url: str) -> np.ndarray:
    """Read the labels beside a file of images: (n,) uint8."""
    folder, _, name = images_url.rpartition("/")
    url = f"{folder}/{name.replace('images', 'labels').replace('idx3', 'idx1')}"
    file = _beside(url)
    with _open(file.url, file.size) as stream:
        magic, count = _LABELS_HEAD.unpack(_read(stream, file.url, _LABELS_HEAD.size))
        if magic != _LABELS_MAGIC or not 0 < count <= _LABELS_LIMIT:
            raise ShardError(f"{file.url}: not an idx file of labels; copy or fetch it again")
        return np.frombuffer(_read(stream, file.url, count), np.uint8)


def _beside(url: str) -> File:
    """Find the labels: gzipped or not, whatever the images are."""
    other = url.removesuffix(".gz") if url.endswith(".gz") else f"{url}.gz"
    for candidate in (url, other):
        if exists(candidate):
            [file] = list_files(candidate)
            return file
    raise SourceError(f"{url}: no such file or folder; the labels of the images must lie beside them")


def _open(url: str, size: int) -> io.BufferedIOBase:
    raw = io.BufferedReader(RangeReader(url, 0, size), 64 * 1024)
    return gzip.GzipFile(fileobj=raw) if url.endswith(".gz") else raw


def _read(stream: io.BufferedIOBase, url: str, length: int, more: int = 0) -> bytes:
    """Read so many bytes, and none less."""
    try:
        data = stream.read(length + more)
    except (OSError, EOFError, zlib.error) as error:
        raise ShardError(f"{url}: damaged or cut off: {error}; copy or fetch it again") from error
    if len(data) < length:
        raise ShardError(
            f"{url}: cut off: {len(data)} bytes came of the {length} that are next; copy or fetch it again"
        )
    return data
