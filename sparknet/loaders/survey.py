"""A pass over a source to see what is in it: counts, classes, sizes, bad samples, and a sheet of images to look at."""

import hashlib
import heapq
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path

from PIL import Image as PillowImage
from PIL import ImageDraw

from sparknet.errors import RunError
from sparknet.loaders.decode import decode
from sparknet.loaders.layouts.plan import Sample
from sparknet.loaders.samples import BadSample, Counted, Ledger, Samples, decode_samples
from sparknet.session import readable_errors

_THUMB = 96
_CAPTION = 14
_COLUMNS = 10


@dataclass(frozen=True)
class Thumb:
    """A small picture for the sheet. `rank` is its place in a random order over all images."""

    rank: int
    png: bytes
    label: int | None


@dataclass(frozen=True)
class Survey:
    """What a source holds; surveys of its parts add up.

    Attributes:
        ledger: samples seen, good, and bad by name. A sample without a label is good here.
        unlabelled: good samples without a label.
        per_class: good samples by class index.
        sizes: good samples by (width, height), pixels.
        thumbs: for the sheet, in random order.
    """

    ledger: Ledger = field(default_factory=Ledger)
    unlabelled: int = 0
    per_class: Counter[int] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    thumbs: tuple[Thumb, ...] = ()


def survey(samples: Samples, thumbs: int = 0) -> Survey:
    """Read and decode every sample once.

    Args:
        samples: as they come from the source.
        thumbs: how many images to keep for a sheet.

    Raises:
        SampleError: samples were lost, or none is good.
        SourceError, ShardError: the source cannot be read.
    """
    with readable_errors():
        parts = samples.rdd.mapPartitions(partial(_survey_part, thumbs=thumbs)).collect()
    total = reduce(partial(_add, thumbs=thumbs), parts, Survey())
    total.ledger.check(samples.source)
    return total


def check_sheet(path: Path) -> None:
    """Make sure that a contact sheet can be written, before all images are read for it.

    Raises:
        RunError: there is no such folder, or one that cannot be written.
    """
    if path.is_dir():
        raise RunError(f"{path}: is a folder; name a file for the sheet, a PNG")
    if not path.parent.is_dir():
        raise RunError(f"{path}: no folder {path.parent} for the sheet; make it, or name another")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RunError(f"{path}: not permitted to write the sheet there; name another folder")


def save_sheet(found: Survey, class_names: tuple[str, ...], path: Path) -> None:
    """Write a contact sheet of random images, each with the name of its class below.

    Args:
        found: a survey with thumbs.
        class_names: by class index.
        path: of the picture, PNG.

    Raises:
        RunError: it cannot be written.
    """
    rows = -(-len(found.thumbs) // _COLUMNS)
    sheet = PillowImage.new("RGB", (_COLUMNS * (_THUMB + 4) + 4, rows * (_THUMB + _CAPTION + 4) + 4), "white")
    draw = ImageDraw.Draw(sheet)
    for i, thumb in enumerate(found.thumbs):
        x = 4 + i % _COLUMNS * (_THUMB + 4)
        y = 4 + i // _COLUMNS * (_THUMB + _CAPTION + 4)
        with PillowImage.open(io.BytesIO(thumb.png)) as picture:
            sheet.paste(picture, (x + (_THUMB - picture.width) // 2, y + (_THUMB - picture.height) // 2))
        name = "no label" if thumb.label is None else class_names[thumb.label]
        draw.text((x + _THUMB // 2, y + _THUMB + 1), name[:16], fill="black", anchor="mt")
    beside = path.with_name(f"{path.name}.part")
    try:
        sheet.save(beside, "PNG")
        beside.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot write the sheet: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def _survey_part(samples: Iterable[Sample], thumbs: int) -> Iterator[Survey]:
    good = unlabelled = 0
    counted = Counted(samples)
    bad: list[BadSample] = []
    per_class: Counter[int] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    kept: list[tuple[int, Sample]] = []
    for outcome in decode_samples(counted, labelled=False):
        if isinstance(outcome, BadSample):
            bad.append(outcome)
            continue
        good += 1
        sample, pixels = outcome
        sizes[pixels.shape[1], pixels.shape[0]] += 1
        if sample.label is None:
            unlabelled += 1
        else:
            per_class[sample.label] += 1
        if thumbs:
            heapq.heappush(kept, (-_rank(sample), sample))
            if len(kept) > thumbs:
                heapq.heappop(kept)
    pictures = tuple(Thumb(-rank, _thumbnail(sample.data), sample.label) for rank, sample in kept)
    yield Survey(Ledger(counted.seen, good, tuple(bad)), unlabelled, per_class, sizes, pictures)


def _add(one: Survey, other: Survey, thumbs: int) -> Survey:
    return Survey(
        one.ledger + other.ledger,
        one.unlabelled + other.unlabelled,
        one.per_class + other.per_class,
        one.sizes + other.sizes,
        tuple(heapq.nsmallest(thumbs, one.thumbs + other.thumbs, key=lambda thumb: thumb.rank)),
    )


def _rank(sample: Sample) -> int:
    """Place a sample in an order that looks random and is the same each time."""
    return int.from_bytes(hashlib.blake2b(f"{sample.url} {sample.offset}".encode(), digest_size=8).digest())


def _thumbnail(data: bytes) -> bytes:
    out = io.BytesIO()
    small = PillowImage.fromarray(decode(data))
    # Small images are enlarged, by whole pixels, so that one sees what the network gets.
    factor = max(1, _THUMB // max(small.size))
    small = small.resize((small.width * factor, small.height * factor), PillowImage.Resampling.NEAREST)
    small.thumbnail((_THUMB, _THUMB))
    small.save(out, "PNG")
    return out.getvalue()
