"""From a minibatch's bytes to a network's input, on its device. In: uint8 crops. Out: a float tensor.

As in Caffe, each crop has the mean image's pixels of its own place subtracted, a mirrored one the mirrored mean's. On a
CPU an image is converted at a time, while it is in the cache; elsewhere bytes travel, and the whole minibatch
is converted there. Both give the same bits.
"""

from collections import deque

import numpy as np
import torch

from sparknet.loaders.minibatch import Minibatch


class ToTensor:
    """The conversion of a run's minibatches.

    Args:
        mean: (side, side, 3) float32, the mean image, in grey levels; nothing is subtracted where None.
        scale: factor of the result.
        device: where to convert, and where the result lies.
        channels_last: whether the result's channels are next to each other in memory, as convolutions on a CPU and
            on tensor cores like it; its shape is the same.
        kept: how many of the newest results must stay as they are on a CPU, where memory is used again.
    """

    def __init__(
        self,
        mean: np.ndarray | None,
        scale: float,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        kept: int = 1,
    ) -> None:
        self._scale, self._device = scale, torch.device(device)
        self._channels_last = channels_last
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._buffers = deque(torch.empty(0) for _ in range(kept))
        self._means: tuple[torch.Tensor, torch.Tensor] | None = None
        if mean is not None:
            both = (torch.from_numpy(np.ascontiguousarray(image)) for image in (mean, mean[:, ::-1]))
            plain, mirrored = (image.permute(2, 0, 1)[None].to(self._device) for image in both)
            self._means = (
                plain.contiguous(memory_format=self._format)[0],
                mirrored.contiguous(memory_format=self._format)[0],
            )

    def __call__(self, batch: Minibatch) -> torch.Tensor:
        """Convert a minibatch.

        Args:
            batch: n crops.

        Returns:
            (n, 3, crop, crop) float32, on the device. On a CPU it is good until so many others are converted as are
            kept: new memory for each would take as long as filling it.
        """
        pixels = torch.from_numpy(batch.images).to(self._device).permute(0, 3, 1, 2)
        if self._device.type == "cpu":
            return self._one_by_one(pixels, batch)
        return self._all_at_once(pixels, batch)

    def _one_by_one(self, pixels: torch.Tensor, batch: Minibatch) -> torch.Tensor:
        self._buffers.rotate()
        if len(self._buffers[0]) < len(pixels) or self._buffers[0].shape[1:] != pixels.shape[1:]:
            self._buffers[0] = torch.empty(pixels.shape, dtype=torch.float32, memory_format=self._format)
        out = self._buffers[0][: len(pixels)]
        if self._means is None:
            return torch.mul(pixels, self._scale, out=out)
        side, crop = self._means[0].shape[-1], pixels.shape[-1]
        for i, ((top, left), mirrored) in enumerate(zip(batch.corners.tolist(), batch.mirrored.tolist(), strict=True)):
            if mirrored:
                left = side - crop - left
            x = out[i]
            # In two steps: torch's subtraction of mixed types takes one and a half times as long. And plane by plane
            # where they do not stay planes: in one call that takes five times as long.
            for plane, values in zip(x, pixels[i], strict=True) if self._channels_last else ((x, pixels[i]),):
                plane.copy_(values)
            x.sub_(self._means[mirrored][:, top : top + crop, left : left + crop])
            if self._scale != 1:
                x.mul_(self._scale)
        return out

    def _all_at_once(self, pixels: torch.Tensor, batch: Minibatch) -> torch.Tensor:
        x = pixels.to(torch.float32, memory_format=self._format)
        if self._means is not None:
            crop = x.shape[-1]
            windows = self._means[0].unfold(1, crop, 1).unfold(2, crop, 1)
            tops, lefts = torch.from_numpy(batch.corners).to(self._device).unbind(1)
            mean = windows[:, tops, lefts].transpose(0, 1)
            mirrored = torch.from_numpy(batch.mirrored).to(self._device)[:, None, None, None]
            x -= torch.where(mirrored, mean.flip(-1), mean)
        return x if self._scale == 1 else x.mul_(self._scale)
