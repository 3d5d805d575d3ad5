"""From a minibatch's bytes to a network's input, on its device. In: uint8 crops. Out: a float tensor.

As in Caffe, each crop has the mean image's pixels of its own place subtracted, a mirrored one the mirrored mean's. Then
its colours are shifted, where that was chosen, and all is scaled. On a CPU an image is converted at a time, while it is
in the cache. On CUDA bytes travel, and the whole minibatch is converted there, both on a stream beside the network's.
Both ways give the same bits.
"""

from collections import deque

import numpy as np
import torch

from sparknet.loaders.minibatch import Minibatch


class ToTensor:
    """The conversion of a run's minibatches.

    Args:
        mean: (side, side, 3) float32, the mean image, or (3,), mean values, in grey levels of red, green, blue; nothing
            is subtracted where None.
        scale: factor of the result.
        device: where to convert, and where the result lies.
        channels_last: whether the result's channels are next to each other in memory, as convolutions on a CPU and
            on tensor cores like it; its shape is the same.
        kept: how many of the newest results must stay as they are on a CPU, where memory is used again.
        bgr: whether the result's channels are blue, green, red, as networks made with Caffe take them.
        colour: (3, 3) float32, a column for each principal component of the training set's colours, in grey levels (see
            `Blocks.colour_components`); for minibatches with shifts of colour.
    """

    def __init__(
        self,
        mean: np.ndarray | None,
        scale: float,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        kept: int = 1,
        *,
        bgr: bool = False,
        colour: np.ndarray | None = None,
    ) -> None:
        self._scale, self._device = scale, torch.device(device)
        self._channels_last = channels_last
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._buffers = deque(torch.empty(0) for _ in range(kept))
        self._order = [2, 1, 0] if bgr else [0, 1, 2]
        self._colour = colour
        self._means: tuple[torch.Tensor, torch.Tensor] | None = None
        self._has_places = mean is not None and mean.ndim == 3
        if mean is not None:
            image = np.reshape(mean, (1, 1, 3)) if mean.ndim == 1 else mean
            image = image[:, :, self._order]
            both = (torch.from_numpy(one.copy()) for one in (image, image[:, ::-1]))
            plain, mirrored = (one.permute(2, 0, 1)[None].to(self._device) for one in both)
            self._means = (
                plain.contiguous(memory_format=self._format)[0],
                mirrored.contiguous(memory_format=self._format)[0],
            )
        self._stream: torch.cuda.Stream | None = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(self._device))  # for the mean

    def __call__(self, batch: Minibatch) -> torch.Tensor:
        """Convert a minibatch.

        Args:
            batch: n crops.

        Returns:
            (n, 3, crop, crop) float32, on the device. On a CPU it is good until so many others are converted as are
            kept: new memory for each would take as long as filling it.
        """
        pixels = torch.from_numpy(batch.images).permute(0, 3, 1, 2)
        if self._stream is None:
            return self._one_by_one(pixels, batch)
        with torch.cuda.stream(self._stream):
            x = self._all_at_once(pixels.to(self._device, non_blocking=True), batch)
        # Whoever prefetches waits here, and the network does not: then the bytes may be written over.
        self._stream.synchronize()
        x.record_stream(torch.cuda.current_stream(self._device))
        return x

    def _one_by_one(self, pixels: torch.Tensor, batch: Minibatch) -> torch.Tensor:
        self._buffers.rotate()
        if len(self._buffers[0]) < len(pixels) or self._buffers[0].shape[1:] != pixels.shape[1:]:
            self._buffers[0] = torch.empty(pixels.shape, dtype=torch.float32, memory_format=self._format)
        out = self._buffers[0][: len(pixels)]
        choices, shifts = batch.choices, self._shifts(batch)
        if self._means is None and shifts is None and self._order == [0, 1, 2]:
            return torch.mul(pixels, self._scale, out=out)
        crop = pixels.shape[-1]
        # In steps: torch's subtraction of mixed types takes one and a half times as long. And plane by plane where they
        # do not stay planes: in one call that takes five times as long.
        by_plane = self._channels_last or self._order != [0, 1, 2]
        for i, ((top, left), mirrored) in enumerate(
            zip(choices.corners.tolist(), choices.mirrored.tolist(), strict=True)
        ):
            x, image = out[i], pixels[i]
            if by_plane:
                for channel, source in enumerate(self._order):
                    x[channel].copy_(image[source])
            else:
                x.copy_(image)
            if self._means is not None:
                mean = self._means[mirrored]
                if self._has_places:
                    if mirrored:
                        left = mean.shape[-1] - crop - left
                    mean = mean[:, top : top + crop, left : left + crop]
                x.sub_(mean)
            if shifts is not None:
                x.add_(shifts[i, :, None, None])
            if self._scale != 1:
                x.mul_(self._scale)
        return out

    def _all_at_once(self, pixels: torch.Tensor, batch: Minibatch) -> torch.Tensor:
        if self._order != [0, 1, 2]:
            pixels = pixels[:, self._order]
        x = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device, memory_format=self._format)
        shifts = self._shifts(batch)
        if self._means is None and shifts is None:
            return torch.mul(pixels, self._scale, out=x)
        if self._means is None:
            x.copy_(pixels)
        else:
            mean = self._means[0]
            if self._has_places:
                crop = x.shape[-1]
                windows = mean.unfold(1, crop, 1).unfold(2, crop, 1)
                tops, lefts = torch.from_numpy(batch.choices.corners).to(self._device).unbind(1)
                mean = windows[:, tops, lefts].transpose(0, 1)
                mirrored = torch.from_numpy(batch.choices.mirrored).to(self._device)[:, None, None, None]
                mean = torch.where(mirrored, mean.flip(-1), mean)
            torch.sub(pixels, mean, out=x)  # of mixed types: one kernel on CUDA
        if shifts is not None:
            x += shifts[:, :, None, None]
        return x if self._scale == 1 else x.mul_(self._scale)

    def _shifts(self, batch: Minibatch) -> torch.Tensor | None:
        """What is added to each channel of each image: (n, 3), in the result's order."""
        if batch.choices.colour is None:
            return None
        if self._colour is None:
            raise ValueError("the minibatch has shifts of colour; give the set's components (colour)")
        shifts = batch.choices.colour @ self._colour.T
        return torch.from_numpy(np.ascontiguousarray(shifts[:, self._order])).to(self._device)
