"""ILSVRC2012 as it is given out: ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, ILSVRC2012_img_test.tar.

The train tar holds one inner tar a class, named by WordNet ID. It is read in place. A folder of those inner tars, as
they lie after unpacking the outer one, is the same set.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.labels import synset_indices
from sparknet.loaders.layouts.plan import Part, Plan
from sparknet.loaders.layouts.tars import divide, first_member, read_tar
from sparknet.loaders.source import File, Listing, open_scan
from sparknet.loaders.tar import scan

_FLAT_NAME = re.compile(r"ILSVRC2012_(val|test)_\d{8}\.JPEG")
_CLASS_TAR = re.compile(r"n\d{8}\.tar")


def plan(listing: Listing) -> Plan[Part] | None:
    """Recognise the official tars.

    Raises:
        ShardError: a tar is damaged, or holds inner tars beside other files.
        SourceError: two tars of a folder are of the same class.
    """
    files = listing.ending(".tar")
    if not files:
        return None
    if all(_CLASS_TAR.fullmatch(_basename(file.url)) for file in files):
        return _folder(files)
    if len(files) != 1:
        return None
    first = first_member(files[0])
    if first is None:
        return None
    if first.name.endswith(".tar"):
        return _nested(files[0])
    if _FLAT_NAME.fullmatch(_basename(first.name)):
        return Plan(layout="ilsvrc", parts=divide(files), read=read_tar)
    return None


def _folder(files: Sequence[File]) -> Plan[Part]:
    parts: dict[str, Part] = {}
    for file in files:
        name = _basename(file.url)
        if name in parts:
            raise SourceError(f"{file.url}: the class of {parts[name].url} again; name a folder with one tar a class")
        parts[name] = Part(file.url, 0, file.size)
    return _classes(parts)


def _nested(file: File) -> Plan[Part]:
    parts = {}
    with open_scan(file.url) as stream:
        for member in scan(stream, file.url):
            name = _basename(member.name)
            if not name.endswith(".tar"):
                raise ShardError(
                    f"{file.url}: {member.name} at offset {member.header} is not a tar, but its first member is one; "
                    "a train tar holds one inner tar a class and nothing else"
                )
            if name in parts:
                raise ShardError(f"{file.url}: {member.name} occurs twice, again at offset {member.header}")
            parts[name] = Part(file.url, member.offset, member.size, tar=member.offset)
    return _classes(parts)


def _classes(parts: dict[str, Part]) -> Plan[Part]:
    stems = {PurePosixPath(name).stem: part for name, part in parts.items()}
    index = synset_indices(list(stems))
    return Plan(
        layout="ilsvrc",
        parts=tuple(stems[stem]._replace(prefix=f"{stem}/", label=label) for stem, label in index.items()),
        read=read_tar,
        class_names=tuple(index),
    )


def _basename(name: str) -> str:
    return PurePosixPath(name).name
