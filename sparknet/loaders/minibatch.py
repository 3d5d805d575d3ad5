"""Minibatches from a worker's share. In: the share's blocks. Out: uint8 crops, and where each was taken.

Which samples a batch holds, where they are cropped and which are mirrored follow from (seed, share, iteration) alone:
a task that is run again draws the same. The second number of every generator's seed tells the streams of one run
apart: 1 deals samples out, 2 orders epochs, 3 crops and mirrors, 4 is torch's own (dropout).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sparknet.errors import ConfigError
from sparknet.loaders.block import Block, open_block

if TYPE_CHECKING:
    import torch


class Minibatch(NamedTuple):
    """One batch of n samples.

    Attributes:
        images: (n, crop, crop, 3) uint8, RGB, as they lie in their image: not mirrored yet.
        labels: (n,) int64, class indices.
        corners: (n, 2) int64, row and column of each crop in its image, pixels.
        mirrored: (n,) bool, which are to be mirrored left to right.
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
        self._stored = [open_block(block) for block in blocks]
        self._starts = np.cumsum([0] + [len(block) for block in blocks])
        self.labels = np.concatenate([block.labels for block in blocks])
        self.seed, self.number = seed, number

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices: np.ndarray, corners: np.ndarray, crop: int) -> np.ndarray:
        """Copy crops of images out of the blocks.

        Args:
            indices: (n,) of images in the share.
            corners: (n, 2) row and column of each crop, pixels.
            crop: height and width of the crops, pixels.

        Returns:
            (n, crop, crop, 3) uint8.
        """
        out = np.empty((len(indices), crop, crop, 3), np.uint8)
        block_of = np.searchsorted(self._starts, indices, side="right") - 1
        within = indices - self._starts[block_of]
        for i, (block, row, (top, left)) in enumerate(zip(block_of, within, corners, strict=True)):
            out[i] = self._stored[block].image(row)[top : top + crop, left : left + crop]
        return out

    def order(self, start: int, count: int) -> np.ndarray:
        """List which samples come at places [start, start + count) of the endless sequence of epochs.

        Every epoch is a permutation of the share, drawn from (seed, number, epoch): each sample comes once in it. A
        batch may lie across the end of an epoch.

        Returns:
            (count,) int64, indices into the share.
        """
        epochs = range(start // len(self), (start + count - 1) // len(self) + 1)
        sequence = np.concatenate(
            [np.random.default_rng((self.seed, 2, self.number, epoch)).permutation(len(self)) for epoch in epochs]
        )
        first = start - epochs[0] * len(self)
        return sequence[first : first + count]

    def minibatches(
        self, first_iteration: int, count: int, *, batch: int, crop: int, mirror: bool = False
    ) -> Iterator[Minibatch]:
        """Draw the minibatches of a run of iterations, randomly cropped, and mirrored by a coin's toss.

        Args:
            first_iteration: since the start of training.
            count: of iterations.
            batch: samples in each.
            crop: height and width, pixels; at most the images' side.
            mirror: whether half of the samples are to be mirrored.

        Raises:
            ConfigError: crop is larger than the images.
        """
        check_crop(crop, self.side)
        order = self.order(first_iteration * batch, count * batch)
        for i in range(count):
            rng = np.random.default_rng((self.seed, 3, self.number, first_iteration + i))
            indices = order[i * batch : (i + 1) * batch]
            corners = rng.integers(0, self.side - crop + 1, (batch, 2))
            mirrored = rng.random(batch) < 0.5 if mirror else np.zeros(batch, bool)
            yield Minibatch(self.gather(indices, corners, crop), self.labels[indices], corners, mirrored)


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
    images = block.images()
    corner = (block.side - crop) // 2
    window = slice(corner, corner + crop)
    for start in range(0, len(block), batch):
        crops = np.array(images[start : start + batch, window, window])
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


def to_tensor(
    batch: Minibatch, mean: "torch.Tensor | None", scale: float, device: "torch.device | str"
) -> "torch.Tensor":
    """Convert a batch to a network's input, on its device: mean subtracted, mirrored, scaled; bytes travel there.

    As in Caffe, each crop has the mean image's pixels of its own place subtracted before it is mirrored.

    Args:
        batch: n crops.
        mean: (3, side, side) float32 on the device, in grey levels; nothing is subtracted where None.
        scale: factor for the result.
        device: where to convert.

    Returns:
        (n, 3, crop, crop) float32, contiguous.
    """
    import torch

    x = torch.from_numpy(batch.images).to(device).permute(0, 3, 1, 2)
    x = x.to(torch.float32, memory_format=torch.contiguous_format)
    if mean is not None:
        crop = x.shape[-1]
        if crop == mean.shape[-1]:
            x -= mean
        else:
            windows = mean.unfold(1, crop, 1).unfold(2, crop, 1)
            tops, lefts = torch.from_numpy(batch.corners).to(device).unbind(1)
            x -= windows[:, tops, lefts].transpose(0, 1)
    if batch.mirrored.any():
        mirrored = torch.from_numpy(batch.mirrored).to(device)
        x[mirrored] = x[mirrored].flip(-1)
    return x if scale == 1 else x.mul_(scale)
