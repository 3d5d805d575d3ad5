"""How much memory of its own a worker takes to draw minibatches, by the size of its share.

Pages of mapped files are apart: the system takes them back when it needs them.
"""

import multiprocessing
import os
import re
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparknet.loaders.augment import Augmentation
from sparknet.loaders.block import Block
from sparknet.loaders.minibatch import Share

SMAPS = Path("/proc/self/smaps_rollup")
"""Without it nothing can be measured."""


class Memory(NamedTuple):
    """What a process took while it drew an epoch.

    Attributes:
        images: in its share.
        own_bytes: that are no file's, at most; what it had before it opened the share is left out.
        buffers_bytes: of a minibatch's uint8 and float32 images.
        mapped_bytes: of files, at the end.
    """

    images: int
    own_bytes: int
    buffers_bytes: int
    mapped_bytes: int


def measure(blocks: list[Block], batch: int, crop: int, times: int) -> list[Memory]:
    """Draw an epoch, crops less a mean image in float32, from a share and from one of several times its size.

    Args:
        blocks: of the share. The larger one has each of their files under several names.
        batch: images of a minibatch.
        crop: height and width of what is drawn, pixels.
        times: how many times as large the other is.
    """
    return [_in_a_process(_again(blocks, count), batch, crop) for count in (1, times)]


def _again(blocks: list[Block], times: int) -> list[Block]:
    names = [(block, f"{number}-{block.name}") for number in range(times) for block in blocks]
    made = []
    for block, name in names:
        path = Path(block.path).with_name(name)
        if not path.exists():
            os.link(block.path, path)
        made.append(replace(block, name=name, path=str(path)))
    return made


def _in_a_process(blocks: list[Block], batch: int, crop: int) -> Memory:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_draw, args=(blocks, batch, crop, there))
    process.start()
    there.close()
    try:
        found: Memory = here.recv()
    finally:
        process.join()
    return found


def _draw(blocks: list[Block], batch: int, crop: int, out: Connection) -> None:
    import torch

    from sparknet.loaders.convert import ToTensor

    torch.set_num_threads(1)
    side = blocks[0].side
    to_tensor = ToTensor(np.zeros((side, side, 3), np.float32), 1)
    before = most = _bytes()
    share = Share(blocks, seed=0, number=0)
    augmentation = Augmentation(crop=crop, mirror=True)
    for minibatch in share.minibatches(0, len(share) // batch, batch=batch, augmentation=augmentation):
        to_tensor(minibatch)
        most = max(most, _bytes())  # by what is no file's
    buffers = batch * 3 * crop * crop * (1 + 4)
    out.send(Memory(len(share), most[0] - before[0], buffers, _bytes()[1] - before[1]))


def _bytes() -> tuple[int, int]:
    """Say what this process has of memory that is no file's, and of files; as Linux tells it."""
    text = SMAPS.read_text()
    all_of_it, own = (int(re.search(rf"^{name}: +(\d+) kB$", text, re.MULTILINE)[1]) for name in ("Rss", "Anonymous"))  # type: ignore[index]
    return 1024 * own, 1024 * (all_of_it - own)
