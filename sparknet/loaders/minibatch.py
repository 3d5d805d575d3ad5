"""Minibatches from a worker's share. In: the share's blocks. Out: uint8 crops, mirrored, and where each was taken.

Which samples a batch holds, and what is chosen for each (`sparknet.loaders.augment`), follow from (seed, share,
iteration) alone: a task that is run again draws the same. The second number of every generator's seed tells the streams
of one run apart: 1 deals samples out, 2 orders them, 3 augments them, 4 is torch's own (dropout).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparknet.loaders.augment import Augmentation, Choices, check_crop, choose
from sparknet.loaders.block import Block
from sparknet.loaders.orders import Order, Tail, order_of
from sparknet.loaders.preprocess import resize_planes
from sparknet.loaders.stored import Chain, open_stored


class Minibatch(NamedTuple):
    """One batch of n samples.

    Attributes:
        images: (n, crop, crop, 3) uint8, RGB. They lie plane by plane: `images.transpose(0, 3, 1, 2)` is contiguous.
        labels: (n,) int64, class indices.
        choices: how each was taken from its image. Shifts of colour are not done yet: they need the set's components.
    """

    images: np.ndarray
    labels: np.ndarray
    choices: Choices


class Share(Chain):
    """The images of one worker: its blocks, end to end.

    Args:
        blocks: in order. Their files are mapped, and made again where missing.
        seed: of the run.
        number: of the worker, 0 to K - 1.
    """

    def __init__(self, blocks: Sequence[Block], seed: int, number: int) -> None:
        super().__init__(blocks)
        self.side = blocks[0].side
        self.labels = np.concatenate([block.labels for block in blocks])
        self.seed, self.number = seed, number

    def gather(
        self,
        indices: np.ndarray,
        choices: Choices,
        crop: int,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Copy crops of images out of the blocks.

        Args:
            indices: (n,) of images in the share.
            choices: windows to take, and which to mirror.
            crop: height and width of the crops, pixels.
            out: (n or more, 3, crop, crop) uint8, where to put them; a new array where None.

        Returns:
            (n, crop, crop, 3) uint8, a view of planes as in `Minibatch`.
        """
        import torch  # its mirroring is twice as fast as a copy with a negative stride

        out = np.empty((len(indices), 3, crop, crop), np.uint8) if out is None else out[: len(indices)]
        block_of, rows = self.locate(indices)
        windows = np.concatenate([choices.corners, choices.corners + choices.sizes], axis=1).tolist()
        resized = (choices.sizes != crop).any(axis=1).tolist()
        wanted = zip(block_of.tolist(), rows.tolist(), windows, resized, choices.mirrored.tolist(), strict=True)
        for i, (block, row, (top, left, bottom, right), resize, mirror) in enumerate(wanted):
            taken = self.stored[block].row(row)[:, top:bottom, left:right]
            if resize:
                taken = resize_planes(taken, crop)
            out[i] = torch.from_numpy(taken).flip(2).numpy() if mirror else taken
        return out.transpose(0, 2, 3, 1)

    def minibatches(
        self,
        first_iteration: int,
        count: int,
        *,
        batch: int,
        augmentation: Augmentation,
        order: Order = "epoch",
        tail: Tail = "carried",
        kept: int = 1,
        pinned: bool = False,
    ) -> Iterator[Minibatch]:
        """Draw the minibatches of a run of iterations.

        Their images lie in memory that is used again: one is good until so many others are drawn as are kept. New
        memory for each would take as long as filling it.

        Args:
            first_iteration: since the start of training.
            count: of iterations, a round's.
            batch: samples in each.
            augmentation: what becomes of the images.
            order: which samples come in which minibatch; see `sparknet.loaders.orders.order_of`.
            tail: what becomes of an epoch's last samples; likewise.
            kept: how many of the newest minibatches must stay as they are.
            pinned: whether that memory is locked in its pages, as CUDA copies it fastest.

        Raises:
            ConfigError: crop is larger than the images, or the share smaller than a batch that it has to fill.
        """
        check_crop(augmentation.crop, self.side)
        indices_of = order_of(order, tail, samples=len(self), batch=batch, tau=count, key=(self.seed, self.number))
        buffers = itertools.cycle([new_buffer(batch, augmentation.crop, pinned) for _ in range(kept)])
        for iteration, buffer in zip(range(first_iteration, first_iteration + count), buffers, strict=False):
            yield self.minibatch(iteration, indices_of(iteration), augmentation, buffer)

    def minibatch(
        self, iteration: int, indices: np.ndarray, augmentation: Augmentation, out: np.ndarray | None = None
    ) -> Minibatch:
        """Draw one minibatch of given samples.

        Args:
            iteration: since the start of training; says what is chosen for them.
            indices: (n,) of images in the share.
            augmentation: as for `minibatches`.
            out: as for `gather`.

        Raises:
            ConfigError: crop is larger than the images.
        """
        check_crop(augmentation.crop, self.side)
        rng = np.random.default_rng((self.seed, 3, self.number, iteration))
        choices = choose(rng, len(indices), self.side, augmentation)
        images = self.gather(indices, choices, augmentation.crop, out)
        return Minibatch(images, self.labels[indices], choices)


def new_buffer(batch: int, crop: int, pinned: bool) -> np.ndarray:
    """Make memory for a minibatch's images: (batch, 3, crop, crop) uint8."""
    import torch

    buffer: np.ndarray = torch.empty((batch, 3, crop, crop), dtype=torch.uint8, pin_memory=pinned).numpy()
    return buffer


def crops_to_score(block: Block, batch: int, crop: int, views: int = 1) -> Iterator[Minibatch]:
    """Go through a block once, in order, for evaluation; the last batch is as short as it comes.

    Args:
        block: whose images.
        batch: samples in each minibatch.
        crop: height and width, pixels; at most the images' side.
        views: crops of each image: 1, its centre; or 10, its corners and its centre, and the same mirrored (Krizhevsky
            et al., "ImageNet Classification with Deep Convolutional Neural Networks", NIPS 2012, section 4.1).

    Yields:
        Minibatches of `views` crops for each sample, one after the other.

    Raises:
        ConfigError: crop is larger than the images.
    """
    check_crop(crop, block.side)
    stored, end = open_stored(block), block.side - crop
    places = [(end // 2, end // 2)]
    if views == 10:
        places = [(0, 0), (0, end), (end, 0), (end, end), *places] * 2
    mirrored = np.arange(views) >= 5
    for start in range(0, len(block), batch):
        rows = range(start, min(start + batch, len(block)))
        crops = np.empty((len(rows), views, 3, crop, crop), np.uint8)
        for i, row in enumerate(rows):
            image = stored.row(row)
            for view, (top, left) in enumerate(places):
                taken = image[:, top : top + crop, left : left + crop]
                crops[i, view] = taken[:, :, ::-1] if mirrored[view] else taken
        n = len(rows) * views
        choices = Choices(np.tile(places, (len(rows), 1)), np.full((n, 2), crop), np.tile(mirrored, len(rows)))
        images = crops.reshape(n, 3, crop, crop).transpose(0, 2, 3, 1)
        yield Minibatch(images, block.labels[rows.start : rows.stop].repeat(views), choices)
