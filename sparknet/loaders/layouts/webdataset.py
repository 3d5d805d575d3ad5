"""WebDataset's shards: tars in which neighbours of the same key are a sample (n01440764_18.jpg, n01440764_18.cls).

A key is a name up to the first dot of its last component. Of a sample's members one is the image; its class is in
`cls`, a number, or in `json`, as "label" or "cls". Members of other kinds are passed over.
"""

import itertools
import json
from collections.abc import Iterator, Sequence

from sparknet.errors import ShardError
from sparknet.loaders.layouts.folder import IMAGE_NAMES
from sparknet.loaders.layouts.plan import Part, Plan, Sample
from sparknet.loaders.layouts.tars import divide, members_of
from sparknet.loaders.source import Listing, open_scan
from sparknet.loaders.tar import Member, scan

_CLASS, _JSON = "cls", "json"

_IMAGES = {name.lstrip(".") for name in IMAGE_NAMES}

# Members that are looked at to recognise the layout.
_LOOKED_AT = 8


def plan(listing: Listing) -> Plan[Part] | None:
    """Recognise tars whose first samples have an image and a class of one key.

    Raises:
        ShardError: a tar is damaged.
    """
    files = listing.ending(".tar")
    if not files:
        return None
    with open_scan(files[0].url) as stream:
        kinds: dict[str, set[str]] = {}
        for member in itertools.islice(scan(stream, files[0].url), _LOOKED_AT):
            key, kind = split(member.name)
            kinds.setdefault(key, set()).add(kind)
    if not any(found & _IMAGES and found & {_CLASS, _JSON} for found in kinds.values()):
        return None
    return Plan(layout="webdataset", parts=divide(files, _key), read=read_shard, labelled=True)


def split(name: str) -> tuple[str, str]:
    """Divide a member's name into its sample's key and its kind, in lower case."""
    folder, slash, last = name.rpartition("/")
    stem, _, kind = last.partition(".")
    return folder + slash + stem, kind.lower()


def read_shard(part: Part) -> Iterator[Sample]:
    """Read the samples of a part of a shard.

    Raises:
        ShardError: damaged, cut off, or a sample has no image, or two.
        SourceError: the file cannot be read.
    """
    for key, group in itertools.groupby(members_of(part), key=lambda found: _key(found[0])):
        yield _sample(key, list(group), part.url)


def _key(member: Member) -> str:
    return split(member.name)[0]


def _sample(key: str, members: Sequence[tuple[Member, bytes]], url: str) -> Sample:
    images = [(member, data) for member, data in members if split(member.name)[1] in _IMAGES]
    if len(images) != 1:
        what = "no image" if not images else f"two images ({images[0][0].name}, {images[1][0].name})"
        raise ShardError(f"{url}: sample {key} at offset {members[0][0].header} has {what}; a sample has one")
    image, data = images[0]
    others = {split(member.name)[1]: text for member, text in members}
    return Sample(image.name.removeprefix("./"), data, _label(others), url, image.offset)


def _label(members: dict[str, bytes]) -> int | None:
    """Find the class; None where nothing tells it, or -1 does, which makes the sample a bad one."""
    try:
        if _CLASS in members:
            label = int(members[_CLASS])
        else:
            found = json.loads(members.get(_JSON, b"{}"))
            label = found.get("label", found.get("cls"))
    except (ValueError, AttributeError):
        return None
    return label if type(label) is int and label >= 0 else None
