"""Minibatches from a worker's share. In: the share's blocks. Out: uint8 crops, mirrored, and where each was taken.

Which samples a batch holds, where they are cropped and which are mirrored follow from (seed, share, iteration) alone:
a task that is run again draws the same. All random choices of a batch are drawn at once, as arrays. The second number
of every generator's seed tells the streams of one run apart: 1 deals samples out, 2 orders them, 3 crops and mirrors,
4 is torch's own (dropout).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparknet.errors import ConfigError
from sparknet.loaders.block import Block
from sparknet.loaders.orders import Order, Tail, order_of
from sparknet.loaders.stored import open_stored


class Minibatch(NamedTuple):
    """One batch of n samples.

    Attributes:
        images: (n, crop, crop, 3) uint8, RGB. They lie plane by plane: `images.transpose(0, 3, 1, 2)` is contiguous.
        labels: (n,) int64, class indices.
        corners: (n, 2) int64, row and column of each crop in its image, pixels.
        mirrored: (n,) bool, which are mirrored left to right, after they were cropped.
    """

    images: np.ndarray
    labels: np.ndarray
    corners: np.ndarray
    mirrored: np.ndarray


class Share:
    """The images of one worker: its blocks, end to end.

    Args:
        blocks: in order. Their files are mapped, and made again where missing.
        seed: of the run.
        number: of the worker, 0 to K - 1.
    """

    def __init__(self, blocks: Sequence[Block], seed: int, number: int) -> None:
        blocks = [block for block in blocks if len(block)]
        self.side = blocks[0].side
        self._stored = [open_stored(block) for block in blocks]
        self._starts = np.cumsum([0] + [len(block) for block in blocks])
        self.labels = np.concatenate([block.labels for block in blocks])
        self.seed, self.number = seed, number

    def __len__(self) -> int:
        return len(self.labels)

    def gather(
        self,
        indices: np.ndarray,
        corners: np.ndarray,
        mirrored: np.ndarray,
        crop: int,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Copy crops of images out of the blocks.

        Args:
            indices: (n,) of images in the share.
            corners: (n, 2) row and column of each crop, pixels.
            mirrored: (n,) bool, which to mirror left to right.
            crop: height and width of the crops, pixels.
            out: (n or more, 3, crop, crop) uint8, where to put them; a new array where None.

        Returns:
            (n, crop, crop, 3) uint8, a view of planes as in `Minibatch`.
        """
        import torch  # its mirroring is twice as fast as a copy with a negative stride

        out = np.empty((len(indices), 3, crop, crop), np.uint8) if out is None else out[: len(indices)]
        block_of = np.searchsorted(self._starts, indices, side="right") - 1
        rows = (indices - self._starts[block_of]).tolist()
        choices = zip(block_of.tolist(), rows, corners.tolist(), mirrored.tolist(), strict=True)
        for i, (block, row, (top, left), mirror) in enumerate(choices):
            taken = self._stored[block].row(row)[:, top : top + crop, left : left + crop]
            out[i] = torch.from_numpy(taken).flip(2).numpy() if mirror else taken
        return out.transpose(0, 2, 3, 1)

    def minibatches(
        self,
        first_iteration: int,
        count: int,
        *,
        batch: int,
        crop: int,
        mirror: bool = False,
        order: Order = "epoch",
        tail: Tail = "carried",
        kept: int = 1,
    ) -> Iterator[Minibatch]:
        """Draw the minibatches of a run of iterations, randomly cropped, and mirrored by a coin's toss.

        Their images lie in memory that is used again: one is good until so many others are drawn as are kept. New
        memory for each would take as long as filling it.

        Args:
            first_iteration: since the start of training.
            count: of iterations, a round's.
            batch: samples in each.
            crop: height and width, pixels; at most the images' side.
            mirror: whether half of the samples are mirrored.
            order: which samples come in which minibatch; see `sparknet.loaders.orders.order_of`.
            tail: what becomes of an epoch's last samples; likewise.
            kept: how many of the newest minibatches must stay as they are.

        Raises:
            ConfigError: crop is larger than the images, or the share smaller than a batch that it has to fill.
        """
        check_crop(crop, self.side)
        indices_of = order_of(order, tail, samples=len(self), batch=batch, tau=count, key=(self.seed, self.number))
        buffers = itertools.cycle([np.empty((batch, 3, crop, crop), np.uint8) for _ in range(kept)])
        for iteration, buffer in zip(range(first_iteration, first_iteration + count), buffers, strict=False):
            yield self.minibatch(iteration, indices_of(iteration), crop=crop, mirror=mirror, out=buffer)

    def minibatch(
        self, iteration: int, indices: np.ndarray, *, crop: int, mirror: bool, out: np.ndarray | None = None
    ) -> Minibatch:
        """Draw one minibatch of given samples.

        Args:
            iteration: since the start of training; says how they are cropped and mirrored.
            indices: (n,) of images in the share.
            crop: as for `minibatches`.
            mirror: likewise.
            out: as for `gather`.

        Raises:
            ConfigError: crop is larger than the images.
        """
        check_crop(crop, self.side)
        rng = np.random.default_rng((self.seed, 3, self.number, iteration))
        corners = rng.integers(0, self.side - crop + 1, (len(indices), 2))
        mirrored = rng.random(len(indices)) < 0.5 if mirror else np.zeros(len(indices), bool)
        images = self.gather(indices, corners, mirrored, crop, out)
        return Minibatch(images, self.labels[indices], corners, mirrored)


def centre_crops(block: Block, batch: int, crop: int) -> Iterator[Minibatch]:
    """Go through a block once, in order, for evaluation: centre crops, the last batch as short as it comes.

    Args:
        block: whose images.
        batch: samples in each minibatch.
        crop: height and width, pixels; at most the images' side.

    Raises:
        ConfigError: crop is larger than the images.
    """
    check_crop(crop, block.side)
    images = block.images().transpose(0, 3, 1, 2)
    corner = (block.side - crop) // 2
    window = slice(corner, corner + crop)
    for start in range(0, len(block), batch):
        crops = np.array(images[start : start + batch, :, window, window]).transpose(0, 2, 3, 1)
        corners = np.full((len(crops), 2), corner, np.int64)
        yield Minibatch(crops, block.labels[start : start + batch], corners, np.zeros(len(crops), bool))


def check_crop(crop: int, side: int) -> None:
    """Make sure that a crop fits.

    Raises:
        ConfigError: it does not.
    """
    if not 1 <= crop <= side:
        raise ConfigError(
            f"crop must be from 1 to the images' side of {side} pixels, got {crop}; use another crop or side"
        )
