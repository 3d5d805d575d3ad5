"""The layouts, by name. To add one: write its `plan` function and register it here."""

from collections.abc import Mapping
from typing import Any

from sparknet.errors import ConfigError, SourceError
from sparknet.loaders.layouts import cifar, folder, ilsvrc, kaggle, mnist, parquet, shards, webdataset
from sparknet.loaders.layouts.plan import Layout, Plan
from sparknet.loaders.source import Listing, list_source

# In the order in which they are tried: the particular before the general.
LAYOUTS: Mapping[str, Layout] = {
    "kaggle": kaggle.plan,
    "mnist": mnist.plan,
    "cifar": cifar.plan,
    "parquet": parquet.plan,
    "ilsvrc": ilsvrc.plan,
    "webdataset": webdataset.plan,
    "shards": shards.plan,
    "folder": folder.plan,
}


def plan_source(url: str, layout: str | None = None) -> Plan[Any]:
    """List a source and find its layout by looking, or take the one that is named.

    Args:
        url: a tar, a folder of tars, or a folder of images. Braces stand for several: `train-{000..199}.tar`.
        layout: one of `LAYOUTS`.

    Raises:
        ConfigError: no layout of that name.
        SourceError: nothing there, not readable, or not in the layout.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"no layout {layout!r}; there are {', '.join(LAYOUTS)}")
    listing = list_source(url)
    if layout is None:
        _check_one(listing)
    for name in [layout] if layout else LAYOUTS:
        plan = LAYOUTS[name](listing)
        if plan is not None:
            if not plan.parts:
                break
            return plan
    raise SourceError(f"{url}: not in the layout {layout or ' or '.join(LAYOUTS)}")


def _check_one(listing: Listing) -> None:
    """Make sure that there are not tars and folders of images: one of them would be passed over in silence."""
    tars = listing.ending(".tar")
    images = [file for file in listing.ending(*folder.IMAGE_NAMES) if "/" in listing.path(file)]
    if listing.root is not None and tars and images:
        raise SourceError(
            f"{listing.url}: holds tars ({listing.path(tars[0])}) and folders of images ({listing.path(images[0])}); "
            "name a folder of one kind, or say which to read (--layout)"
        )
