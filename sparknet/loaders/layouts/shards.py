"""Flat tars of images, one or a folder of them, as the original SparkNet stored them; labels come from a file."""

from sparknet.errors import SourceError
from sparknet.loaders.layouts.plan import Part, Plan
from sparknet.loaders.layouts.tars import divide, first_member, read_tar
from sparknet.loaders.source import Listing


def plan(listing: Listing) -> Plan[Part] | None:
    """Recognise tars of any name.

    Raises:
        ShardError: a tar is damaged.
        SourceError: the first tar holds tars, not images.
    """
    files = listing.ending(".tar")
    if not files:
        return None
    first = first_member(files[0])
    if first is not None and first.name.endswith(".tar"):
        raise SourceError(
            f"{files[0].url}: holds inner tars ({first.name}): not a flat shard; name that file alone, "
            "without --layout shards"
        )
    return Plan(layout="shards", parts=divide(files), read=read_tar)
