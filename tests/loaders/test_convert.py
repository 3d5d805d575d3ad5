"""The conversion to a network's input: fast ways against the plain one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sparknet.loaders.convert import ToTensor
from sparknet.loaders.minibatch import Minibatch, centre_crops
from tests.loaders.test_minibatch import SIDE, draw, images_of, share_of, write_block


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("convert")


def naive(batch: Minibatch, mean: np.ndarray | None, scale: float) -> np.ndarray:
    """What `ToTensor` must give, an image at a time. Mean is (side, side, 3)."""
    out = []
    crop = batch.images.shape[1]
    for image, (top, left), mirrored in zip(batch.images, batch.corners, batch.mirrored, strict=True):
        x = image.astype(np.float64)
        if mean is not None:
            window = mean[top : top + crop, left : left + crop]
            x -= window[:, ::-1] if mirrored else window
        out.append(x.transpose(2, 0, 1) * scale)
    return np.array(out)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1 / 256, 0.017])
@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("crop", [SIDE, 7, 1])
def test_conversion_is_that_of_the_plain_way(
    folder: Path, crop: int, mirror: bool, scale: float, with_mean: bool, channels_last: bool
) -> None:
    mean = np.random.default_rng(3).uniform(0, 255, (SIDE, SIDE, 3)).astype(np.float32) if with_mean else None
    to_tensor = ToTensor(mean, scale, "cpu", channels_last)
    for batch in draw(share_of(folder, 9), 0, 4, batch=9, crop=crop, mirror=mirror):
        before = batch.images.copy()
        x = to_tensor(batch)
        assert x.shape == (9, 3, crop, crop)
        assert x.dtype == torch.float32
        assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        np.testing.assert_allclose(x.numpy(), naive(batch, mean, scale), rtol=1e-6, atol=1e-6)
        assert np.array_equal(batch.images, before)
        pixels = torch.from_numpy(batch.images).permute(0, 3, 1, 2)
        at_once = to_tensor._all_at_once(pixels, batch)  # as on another device
        assert torch.equal(at_once, x)
        assert at_once.stride() == x.stride()


def test_the_mean_of_a_crop_s_place_is_mirrored_with_it() -> None:
    """In Caffe's order the image minus itself is zero, mirrored or not; the other way round it is not."""
    image = images_of(range(1))
    to_tensor = ToTensor(image[0].astype(np.float32), 1)
    for mirrored in (True, False):
        for top, left in ((0, 0), (2, 5)):
            taken = image[:, top : top + 6, left : left + 6]
            batch = Minibatch(
                images=np.ascontiguousarray(taken[:, :, ::-1] if mirrored else taken),
                labels=np.zeros(1, np.int64),
                corners=np.array([[top, left]]),
                mirrored=np.array([mirrored]),
            )
            assert to_tensor(batch).abs().max() == 0


def test_the_centre_of_the_mean_is_taken_for_centre_crops(folder: Path) -> None:
    mean = np.random.default_rng(3).uniform(0, 255, (SIDE, SIDE, 3)).astype(np.float32)
    to_tensor = ToTensor(mean, 1)
    for batch in centre_crops(write_block(folder, range(5)), 2, 7):
        np.testing.assert_allclose(to_tensor(batch).numpy(), naive(batch, mean, 1), rtol=1e-6, atol=1e-6)
