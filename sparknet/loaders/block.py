"""A cached partition: preprocessed images in one memory-mapped file on an executor, and the handle that names it.

In: the samples of a partition. Out: a `Block`, which Spark keeps and sends about: it holds the labels, and where each
image came from. So a block is a pure function of its handle; see `sparknet.loaders.stored`.

In the file an image lies plane by plane, all red, all green, all blue: there a row is mirrored as bytes, and torch's
own format needs no change. Or it lies there as a JPEG, where room is short. After the images comes their sum.
"""

import socket
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparknet.errors import ConfigError
from sparknet.loaders.decode import decode
from sparknet.loaders.layouts.plan import Again, Sample, read_ranges
from sparknet.loaders.preprocess import planes, resize
from sparknet.loaders.samples import BadLimit, BadSample, Counted, Ledger, decode_samples
from sparknet.loaders.stored import Handle, forget_removed, open_stored
from sparknet.scratch import Room, local_path, remove_executors_orphans, written_whole

# How much is written between two looks at the room that is left.
_LOOK_BYTES = 16 * 1024 * 1024

JPEG_QUALITY = 95
"""Of `--cache jpeg`."""

# A photograph of 256 x 256 at that quality takes about a sixth of its pixels.
_JPEG_SHARE = 6


class Form(NamedTuple):
    """What becomes of an image before it is kept.

    Attributes:
        side: height and width of the images, pixels.
        quality: of the JPEG that is kept, 1 to 100; None where the pixels themselves are.
    """

    side: int
    quality: int | None = None

    @property
    def image_bytes(self) -> int:
        """Of an image's pixels."""
        return 3 * self.side * self.side

    @property
    def expected_bytes(self) -> int:
        """What an image takes in a file, about."""
        return self.image_bytes if self.quality is None else self.image_bytes // _JPEG_SHARE

    def nothing(self) -> np.ndarray:
        """Make the sum of no images: (3, side, side) uint32, which holds that of 2^24 of them."""
        return np.zeros((3, self.side, self.side), np.uint32)

    def kept(self, pixels: np.ndarray) -> tuple[bytes | memoryview, np.ndarray]:
        """Bring an image into the form.

        Args:
            pixels: (H, W, 3) uint8, RGB.

        Returns:
            What goes into the file; and (3, side, side) uint8, what a reader will see.
        """
        image = resize(pixels, self.side)
        if self.quality is None:
            planar = planes(image)
            return planar.data.cast("B"), planar
        import simplejpeg

        encoded: bytes = simplejpeg.encode_jpeg(image, self.quality, "RGB", "420", fastdct=False)
        return encoded, planes(decode(encoded))


@dataclass(frozen=True, kw_only=True)
class Block(Handle):
    """Handle of a cached partition of n images.

    Attributes:
        form: what was made of the images.
        labels: (n,) int64, class indices.
        urls: the files that the images came from.
        url_of: (n,) int32, index into `urls`.
        offsets: (n,) int64, where each is found again there.
        sizes: (n,) int64, length of the encoded image, bytes.
        again: reads them.
        ends: (n,) int64, where each image ends in the block's file, bytes; None where all take the same.
        ledger: of the pass that built it.
    """

    form: Form
    labels: np.ndarray
    urls: tuple[str, ...]
    url_of: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    again: Again
    ends: np.ndarray | None
    ledger: Ledger

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def side(self) -> int:
        """Height and width of the images, pixels."""
        return self.form.side

    @property
    def length(self) -> int:
        """The file's length: the images, and their sum."""
        return int(self.span(len(self)).stop)

    def span(self, piece: int) -> slice:
        """Say where in the file an image lies, or, for the number n, the sum of all."""
        if piece == len(self):
            start = self.span(piece - 1).stop if piece else 0
            return slice(start, start + self.form.image_bytes * np.dtype(np.uint32).itemsize)
        if self.ends is None:
            return slice(piece * self.form.image_bytes, (piece + 1) * self.form.image_bytes)
        return slice(int(self.ends[piece - 1]) if piece else 0, int(self.ends[piece]))

    def rows(self, data: np.ndarray) -> Sequence[np.ndarray]:
        """Give the images, (3, side, side) uint8 each, by number."""
        if self.ends is None:
            shape = (len(self), 3, self.side, self.side)
            images: Sequence[np.ndarray] = data[: len(self) * self.form.image_bytes].reshape(shape)  # type: ignore[assignment]
            return images
        return _Encoded(self, data)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Make the images again from their source, and their sum."""
        encoded: list[bytes] = [b""] * len(self)
        for number, url in enumerate(self.urls):
            rows = np.flatnonzero(self.url_of == number)
            rows = rows[np.argsort(self.offsets[rows], kind="stable")]
            places = list(zip(self.offsets[rows].tolist(), self.sizes[rows].tolist(), strict=True))
            for row, data in zip(rows.tolist(), self.again(url, places), strict=True):
                encoded[row] = data
        total = self.form.nothing()
        for data in encoded:
            kept, planar = self.form.kept(decode(data))
            np.add(total, planar, out=total)
            yield kept
        yield total.data.cast("B")

    def origin(self, piece: int) -> str:
        """Say where an image came from."""
        if piece == len(self):
            return f"{', '.join(self.urls)}: the sum of the images"
        return f"{self.urls[self.url_of[piece]]}: the image at offset {self.offsets[piece]}"

    def images(self) -> np.ndarray:
        """Give the block's images, all checked; make the file again first where it is missing or damaged.

        Returns:
            (n, side, side, 3) uint8, RGB, read-only. A view: `images.transpose(0, 3, 1, 2)` is contiguous.

        Raises:
            SourceError, DecodeError: the source no longer gives what it gave.
            SessionError: the file cannot be written.
        """
        planar: np.ndarray = open_stored(self).rows(np.arange(len(self)))[:].view()
        planar.setflags(write=False)
        return planar.transpose(0, 2, 3, 1)

    def sum(self) -> np.ndarray:
        """Sum the images: (side, side, 3) int64."""
        total = open_stored(self).raw(len(self)).view(np.uint32).reshape(3, self.side, self.side)
        return total.transpose(1, 2, 0).astype(np.int64)


class _Encoded(Sequence[np.ndarray]):
    """The images of a block that keeps JPEGs, decoded when they are asked for."""

    def __init__(self, block: Block, data: np.ndarray) -> None:
        self._block, self._data = block, data

    def __len__(self) -> int:
        return len(self._block)

    def __getitem__(self, row: int | slice) -> np.ndarray:  # type: ignore[override]
        if isinstance(row, slice):
            decoded = [self[i] for i in range(*row.indices(len(self)))]
            return np.array(decoded, np.uint8).reshape(-1, 3, self._block.side, self._block.side)
        return planes(decode(self._data[self._block.span(row)].tobytes()))


def check_quality(quality: int | None) -> None:
    """Make sure that there is such a quality of JPEGs.

    Raises:
        ConfigError: there is not.
    """
    if quality is not None and not 1 <= quality <= 100:
        raise ConfigError(f"the quality of cached JPEGs is from 1 to 100, got {quality}")


def write_block(
    index: int,
    samples: Iterable[Sample],
    *,
    form: Form,
    set_id: str,
    limit: BadLimit,
    room: Room,
    again: Again = read_ranges,
) -> Iterator[Block]:
    """Decode and resize a partition's samples into its file.

    Args:
        index: of the partition.
        samples: its samples, labelled.
        form: of the images in the file.
        set_id: begins the names of the set's files.
        limit: how many may be bad.
        room: how much the files may take.
        again: reads the samples again.

    Yields:
        The one handle.

    Raises:
        SampleError: too many samples are bad.
        SessionError, ConfigError: there is not the room.
    """
    forget_removed()
    remove_executors_orphans()
    path = local_path(f"{set_id}-{index:05d}.{'rgb' if form.quality is None else 'jpegs'}")
    left = length_hint(samples)  # 0 where only reading them tells
    room.check(path, set_id, left * form.expected_bytes)
    bad: list[BadSample] = []
    kept: list[tuple[int | None, ...]] = []
    counted = Counted(samples)
    url_index: dict[str, int] = {}
    total = form.nothing()
    written = unlooked = 0
    with written_whole(path) as file:
        for outcome in decode_samples(counted):
            left -= 1
            if isinstance(outcome, BadSample):
                bad.append(outcome)
                limit.check(bad)
                continue
            sample, pixels = outcome
            if unlooked >= _LOOK_BYTES:
                room.check_rest(path, max(left + 1, 1) * written // len(kept))
                unlooked = 0
            piece, planar = form.kept(pixels)
            file.write(piece)
            np.add(total, planar, out=total)
            written += len(piece)
            unlooked += len(piece)
            url = url_index.setdefault(sample.url, len(url_index))
            kept.append((sample.label, url, sample.offset, len(sample.data), written, zlib.crc32(piece)))
        file.write(total.data)
    labels, url_of, offsets, sizes, ends, checksums = np.array(kept, np.int64).reshape(-1, 6).T.copy()
    yield Block(
        name=path.name,
        path=str(path),
        host=socket.gethostname(),
        checksums=np.append(checksums, zlib.crc32(total.data)).astype(np.uint32),
        form=form,
        labels=labels,
        urls=tuple(url_index),
        url_of=url_of.astype(np.int32),
        offsets=offsets,
        sizes=sizes,
        again=again,
        ends=None if form.quality is None else ends,
        ledger=Ledger(counted.seen, len(kept), tuple(bad)),
    )


def write_images(path: Path, images: np.ndarray, labels: np.ndarray, quality: int | None = None) -> Block:
    """Write images that came from no source: the block cannot be made again, and serves as long as its file lies there.

    Args:
        path: of the file.
        images: (n, side, side, 3) uint8, RGB.
        labels: (n,) class indices.
        quality: as in `Form`.

    Raises:
        SessionError: it cannot be written.
    """
    form, n = Form(images.shape[1], quality), len(images)
    kept = [form.kept(image) for image in images]
    total = np.sum([planar for _, planar in kept], axis=0, dtype=np.uint32) if n else form.nothing()
    pieces = [piece for piece, _ in kept] + [total.data.cast("B")]
    with written_whole(path) as file:
        for piece in pieces:
            file.write(piece)
    return Block(
        name=path.name,
        path=str(path),
        host=socket.gethostname(),
        checksums=np.array([zlib.crc32(piece) for piece in pieces], np.uint32),
        form=form,
        labels=np.asarray(labels, np.int64),
        urls=(),
        url_of=np.zeros(n, np.int32),
        offsets=np.zeros(n, np.int64),
        sizes=np.zeros(n, np.int64),
        again=read_ranges,
        ends=None if quality is None else np.cumsum([len(piece) for piece in pieces[:-1]], dtype=np.int64),
        ledger=Ledger(n, n),
    )
