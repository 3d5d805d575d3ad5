"""The conversion to a network's input: fast ways against the plain one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sparknet.loaders.augment import Augmentation, Choices
from sparknet.loaders.convert import ToTensor
from sparknet.loaders.minibatch import Minibatch, crops_to_score
from tests.loaders.test_minibatch import SIDE, draw, images_of, kept, share_of, write_block


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("convert")


def naive(batch: Minibatch, mean: np.ndarray | None, scale: float) -> np.ndarray:
    """What `ToTensor` must give, an image at a time. Mean is (side, side, 3)."""
    out = []
    crop = batch.images.shape[1]
    for image, (top, left), mirrored in zip(batch.images, batch.choices.corners, batch.choices.mirrored, strict=True):
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
                choices=Choices(np.array([[top, left]]), np.full((1, 2), 6), np.array([mirrored])),
            )
            assert to_tensor(batch).abs().max() == 0


def test_the_centre_of_the_mean_is_taken_for_crops_to_score(folder: Path) -> None:
    mean = np.random.default_rng(3).uniform(0, 255, (SIDE, SIDE, 3)).astype(np.float32)
    to_tensor = ToTensor(mean, 1)
    for batch in crops_to_score(write_block(folder, range(5)), 2, 7):
        np.testing.assert_allclose(to_tensor(batch).numpy(), naive(batch, mean, 1), rtol=1e-6, atol=1e-6)


MEANS = {
    "image": np.random.default_rng(3).uniform(0, 255, (SIDE, SIDE, 3)).astype(np.float32),
    "values": np.array([123.5, 117, 104], np.float32),
    "none": None,
}


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("mean", [*MEANS])
@pytest.mark.parametrize("bgr", [True, False])
@pytest.mark.parametrize("shifted", [True, False])
def test_means_orders_of_channels_and_shifts_of_colour(
    folder: Path, shifted: bool, bgr: bool, mean: str, channels_last: bool
) -> None:
    components = np.random.default_rng(4).uniform(-20, 50, (3, 3)).astype(np.float32)
    subtracted = MEANS[mean]
    to_tensor = ToTensor(subtracted, 0.017, "cpu", channels_last, bgr=bgr, colour=components)
    whole = None if subtracted is None else np.broadcast_to(subtracted, (SIDE, SIDE, 3))
    how = Augmentation(crop=7, mirror=True, colour=0.5 if shifted else 0)
    for batch in kept(share_of(folder, 9).minibatches(0, 3, batch=9, augmentation=how)):
        x = to_tensor(batch)
        assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        expected = naive(batch, whole, 1)
        if shifted:
            assert batch.choices.colour is not None
            expected += np.einsum("cp,np->nc", components.astype(float), batch.choices.colour)[:, :, None, None]
        expected = expected[:, ::-1] if bgr else expected
        np.testing.assert_allclose(x.numpy(), expected * 0.017, rtol=1e-5, atol=1e-5)
        at_once = to_tensor._all_at_once(torch.from_numpy(batch.images).permute(0, 3, 1, 2), batch)
        assert torch.equal(at_once, x)
        assert at_once.stride() == x.stride()


def test_shifts_without_components_are_an_error(folder: Path) -> None:
    how = Augmentation(crop=7, colour=0.1)
    [batch] = kept(share_of(folder, 3).minibatches(0, 1, batch=2, augmentation=how))
    with pytest.raises(ValueError, match="give the set's components"):
        ToTensor(None, 1)(batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("mean", [*MEANS])
def test_cuda_gives_the_bits_of_the_cpu(folder: Path, mean: str, channels_last: bool) -> None:
    how = Augmentation(crop=7, mirror=True, colour=0.5)
    components = np.random.default_rng(4).uniform(-20, 50, (3, 3)).astype(np.float32)
    there, here = (ToTensor(MEANS[mean], 0.017, device, channels_last, colour=components) for device in ("cuda", "cpu"))
    for batch in share_of(folder, 9).minibatches(0, 9, batch=9, augmentation=how, pinned=True):
        assert torch.from_numpy(batch.images).is_pinned()
        x = there(batch)
        assert torch.equal(x.cpu(), here(batch))
        assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
