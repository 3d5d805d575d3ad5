"""A cached partition: preprocessed images in one memory-mapped file on an executor, and the handle that names it.

In: the samples of a partition. Out: a `Block`, which Spark keeps and sends about: it holds the labels, where each image
came from, and its checksum. So a block is a pure function of its handle: a task that misses the file, because
its executor is gone or another host's, makes it again from the source; so does one that finds it damaged.

In the file an image lies plane by plane, all red, all green, all blue: there a row is mirrored as bytes, and torch's
own format needs no change.
"""

import logging
import socket
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path

import numpy as np

from sparknet.errors import ShardError
from sparknet.loaders.decode import decode
from sparknet.loaders.layouts.plan import Sample
from sparknet.loaders.preprocess import planes, resize
from sparknet.loaders.samples import BadLimit, BadSample, Counted, Ledger, decode_samples
from sparknet.loaders.source import read_range
from sparknet.scratch import Room, local_path, remove_executors_orphans, written_whole

_log = logging.getLogger(__name__)

# How much is written between two looks at the room that is left.
_LOOK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Block:
    """Handle of a cached partition of n images.

    Attributes:
        name: of the file, without its folder.
        path: where it was written, on `host`.
        host: the machine that wrote it.
        side: height and width of the images, pixels.
        labels: (n,) int64, class indices.
        urls: the files that the images came from.
        url_of: (n,) int32, index into `urls`.
        offsets: (n,) int64, where each encoded image begins there, bytes.
        sizes: (n,) int64, its length, bytes.
        checksums: (n,) uint32, CRC-32 of each preprocessed image, as it lies in the file.
        ledger: of the pass that built it.
    """

    name: str
    path: str
    host: str
    side: int
    labels: np.ndarray
    urls: tuple[str, ...]
    url_of: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    checksums: np.ndarray
    ledger: Ledger

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the file: (n, 3, side, side)."""
        return (len(self), 3, self.side, self.side)

    def images(self) -> np.ndarray:
        """Map the block's images, all checked; make the file again first where it is missing or damaged.

        Returns:
            (n, side, side, 3) uint8, RGB, read-only. A view: `images.transpose(0, 3, 1, 2)` is contiguous.

        Raises:
            SourceError, DecodeError: the source no longer gives what it gave.
            SessionError: the file cannot be written.
        """
        planar = open_block(self).all() if len(self) else np.zeros(self.shape, np.uint8)
        return planar.transpose(0, 2, 3, 1)


class Stored:
    """A block's images in its file, mapped: no byte is read before it is asked for.

    Each image is checked against its checksum when it is first asked for. One that is damaged has the file made
    again; whoever asks sees whole images.

    Args:
        block: whose.
        path: of its file.
        checked: whether the file has just been written from what was checked.
    """

    def __init__(self, block: Block, path: Path, checked: bool = False) -> None:
        self.block = block
        self._map(path, checked)

    def _map(self, path: Path, checked: bool) -> None:
        self.path, self.identity = path, _identity(path)
        # torch takes only what may be written to. What is written to a private mapping does not reach the file.
        # As a plain array: a memmap's own slices take longer than the copy of a crop.
        self._images = np.asarray(np.memmap(path, np.uint8, mode="c", shape=self.block.shape))
        self._unchecked = np.full(len(self.block), not checked)

    def image(self, row: int) -> np.ndarray:
        """Give an image, (3, side, side) uint8, which is to be left as it is."""
        if self._unchecked[row]:
            self._check(row)
        image: np.ndarray = self._images[row]
        return image

    def all(self) -> np.ndarray:
        """Give all images, (n, 3, side, side) uint8, read-only."""
        for row in np.flatnonzero(self._unchecked).tolist():
            self._check(row)
        images = self._images.view()
        images.setflags(write=False)
        return images

    def _check(self, row: int) -> None:
        if self._unchecked[row] and zlib.crc32(self._images[row]) != self.block.checksums[row]:
            _log.warning("%s: image %d is damaged; the file is made again from %s", self.path, row, self.block.urls)
            with suppress(OSError):  # where it is another executor's, it may not be ours to remove
                self.path.unlink()
            self._map(_make_again(self.block), checked=True)
        self._unchecked[row] = False


# What this process has mapped: a Python worker serves one task after the other.
_mapped: dict[str, Stored] = {}


def open_block(block: Block) -> Stored:
    """Open the file of a block that is not empty, or as this process has opened it before; make it again where missing.

    Raises:
        SourceError, DecodeError: the source no longer gives what it gave.
        SessionError: the file cannot be written.
    """
    for path in _places(block):
        known = _mapped.get(block.name)
        if known is not None and known.identity == _identity(path):
            return known
        with suppress(OSError):  # it may have been removed
            if path.stat().st_size == np.prod(block.shape):
                _mapped[block.name] = Stored(block, path)
                return _mapped[block.name]
    _mapped[block.name] = Stored(block, _make_again(block), checked=True)
    return _mapped[block.name]


def _places(block: Block) -> Iterator[Path]:
    """Where its file may lie: a share asks for each of its blocks in every round, and mostly finds the first."""
    if block.host == socket.gethostname():
        yield Path(block.path)
    yield local_path(block.name)


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


def _make_again(block: Block) -> Path:
    path = local_path(block.name)
    with written_whole(path) as file:
        for i, (url, offset, size) in enumerate(zip(block.url_of, block.offsets, block.sizes, strict=True)):
            image = planes(resize(decode(read_range(block.urls[url], int(offset), int(size))), block.side))
            if zlib.crc32(image.data) != block.checksums[i]:
                raise ShardError(
                    f"{block.urls[url]}: the image at offset {offset} is not what it was when it was cached; the file "
                    f"has changed since, or {socket.gethostname()} has another version of Pillow, simplejpeg or torch "
                    f"than {block.host}"
                )
            file.write(image.data)
    return path


def write_block(
    index: int, samples: Iterable[Sample], *, side: int, set_id: str, limit: BadLimit, room: Room
) -> Iterator[Block]:
    """Decode and resize a partition's samples into its file.

    Args:
        index: of the partition.
        samples: its samples, labelled.
        side: height and width of the images, pixels.
        set_id: begins the names of the set's files.
        limit: how many may be bad.
        room: how much the files may take.

    Yields:
        The one handle.

    Raises:
        SampleError: too many samples are bad.
        SessionError, ConfigError: there is not the room.
    """
    forget_removed()
    remove_executors_orphans()
    path = local_path(f"{set_id}-{index:05d}.rgb")
    image_bytes = side * side * 3
    left = length_hint(samples)  # 0 where only reading them tells
    room.check(path, set_id, left * image_bytes)
    kept, bad = [], []
    counted = Counted(samples)
    url_index: dict[str, int] = {}
    unlooked = 0
    with written_whole(path) as file:
        for outcome in decode_samples(counted):
            left -= 1
            if isinstance(outcome, BadSample):
                bad.append(outcome)
                limit.check(bad)
                continue
            sample, pixels = outcome
            if unlooked >= _LOOK_BYTES:
                room.check_rest(path, max(left + 1, 1) * image_bytes)
                unlooked = 0
            image = planes(resize(pixels, side))
            file.write(image.data)
            unlooked += image_bytes
            url = url_index.setdefault(sample.url, len(url_index))
            kept.append((sample.label, url, sample.offset, len(sample.data), zlib.crc32(image.data)))
    labels, url_of, offsets, sizes, checksums = np.array(kept, np.int64).reshape(-1, 5).T.copy()
    yield Block(
        name=path.name,
        path=str(path),
        host=socket.gethostname(),
        side=side,
        labels=labels,
        urls=tuple(url_index),
        url_of=url_of.astype(np.int32),
        offsets=offsets,
        sizes=sizes,
        checksums=checksums.astype(np.uint32),
        ledger=Ledger(counted.seen, len(kept), tuple(bad)),
    )
