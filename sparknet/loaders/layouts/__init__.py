"""The layouts, by name. To add one: write its `plan` function and register it here."""

from collections.abc import Mapping

from sparknet.errors import ConfigError, SourceError
from sparknet.loaders.layouts import ilsvrc, shards
from sparknet.loaders.layouts.plan import Layout, Plan
from sparknet.loaders.source import list_files

# In the order in which they are tried: the particular before the general.
LAYOUTS: Mapping[str, Layout] = {"ilsvrc": ilsvrc.plan, "shards": shards.plan}


def plan_source(url: str, layout: str | None = None) -> Plan:
    """List a source and find its layout by looking, or take the one that is named.

    Args:
        url: a tar, or a folder of tars.
        layout: one of `LAYOUTS`.

    Raises:
        ConfigError: no layout of that name.
        SourceError: nothing there, not readable, or not in the layout.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"no layout {layout!r}; there are {', '.join(LAYOUTS)}")
    files = list_files(url, suffixes=(".tar",))
    for name in [layout] if layout else LAYOUTS:
        plan = LAYOUTS[name](files)
        if plan is not None:
            if not plan.parts:
                break
            return plan
    raise SourceError(f"{url}: not in the layout {layout or ' or '.join(LAYOUTS)}")
