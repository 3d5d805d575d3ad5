"""Images as files of their own: in a folder a class, as torchvision's ImageFolder has them, or all in one folder.

Folders are classes 0..N-1 in sorted order, and may hold others. Images that lie in one folder have their labels from a
file.
"""

from collections.abc import Iterator
from typing import NamedTuple

from sparknet.errors import SourceError
from sparknet.loaders.labels import synset_indices
from sparknet.loaders.layouts.plan import Plan, Sample, part_bytes
from sparknet.loaders.source import File, Listing, read_range

IMAGE_NAMES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp", ".gif")
"""Ends of the names that show that a folder is one of images. What a file is, its bytes tell."""

# What operating systems leave in folders. Names that begin with a dot are theirs too.
_LITTER = {"thumbs.db", "desktop.ini"}

# A folder of such folders has no classes, but sets.
_SPLITS = {"train", "training", "val", "valid", "validation", "test"}


class Image(NamedTuple):
    """A file, its path below the source's folder, and its class."""

    file: File
    key: str
    label: int | None


class Images(NamedTuple):
    """Files that one task reads, one after the other; `url` is that of the first."""

    url: str
    length: int
    samples: int
    images: tuple[Image, ...]


def plan(listing: Listing) -> Plan[Images] | None:
    """Recognise a folder of images.

    Raises:
        SourceError: its folders are sets, not classes; or images lie beside the folders of classes.
    """
    if listing.root is None or not listing.ending(*IMAGE_NAMES):
        return None
    files = {listing.path(file): file for file in listing.files if not _is_litter(file)}
    top = sorted({path.split("/", 1)[0] for path in files if "/" in path})
    splits = [name for name in top if name.lower() in _SPLITS]
    if splits:
        raise SourceError(
            f"{listing.url}: holds sets ({', '.join(splits)}); name one: {listing.url.rstrip('/')}/{splits[0]}"
        )
    beside = [path for path in files if "/" not in path]
    if top and beside:
        raise SourceError(
            f"{listing.url}: {beside[0]} lies beside folders of classes ({top[0]}, ...); move it into one, or away"
        )
    index = synset_indices(top)
    images = [Image(file, path, index.get(path.split("/", 1)[0])) for path, file in files.items()]
    return Plan(layout="folder", parts=group(images), read=read_files, class_names=tuple(index))


def group(images: list[Image]) -> tuple[Images, ...]:
    """Divide files into parts for parallel reading, in their order."""
    target = part_bytes(sum(image.file.size for image in images))
    parts: list[Images] = []
    taken: list[Image] = []
    size = 0
    for image in images:
        taken.append(image)
        size += image.file.size
        if size >= target:
            parts.append(Images(taken[0].file.url, size, len(taken), tuple(taken)))
            taken, size = [], 0
    if taken:
        parts.append(Images(taken[0].file.url, size, len(taken), tuple(taken)))
    return tuple(parts)


def read_files(part: Images) -> Iterator[Sample]:
    """Read the files of a part.

    Raises:
        SourceError: one cannot be read, or is shorter than when it was listed.
    """
    for file, key, label in part.images:
        yield Sample(key, read_range(file.url, 0, file.size), label, file.url, 0)


def _is_litter(file: File) -> bool:
    name = file.url.rsplit("/", 1)[-1].lower()
    return name.startswith(".") or name in _LITTER
