import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sparknet.loaders.preprocess import resize
from tests.loaders.test_decode import difference, photo


def by_pillow(image: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize("side", [1, 7, 32, 100, 256])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (32, 32), (61, 200), (375, 500), (1, 400)])
def test_a_resized_image_is_pillows_within_a_grey_level(size: tuple[int, int], side: int) -> None:
    for image in (photo(*size), noise(*size)):
        resized = resize(image, side)
        assert resized.dtype == np.uint8
        assert resized.flags.c_contiguous
        assert difference(resized, by_pillow(image, side)) <= 1


@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 80), st.integers(0, 10))
def test_any_size_to_any_side(height: int, width: int, side: int, seed: int) -> None:
    image = noise(height, width, seed)
    assert difference(resize(image, side), by_pillow(image, side)) <= 1


@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_one_colour_stays_that_colour(value: int) -> None:
    assert np.array_equal(resize(np.full((50, 70, 3), value, np.uint8), 33), np.full((33, 33, 3), value, np.uint8))


def test_fine_stripes_become_their_mean_not_one_of_them() -> None:
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 200
    inner = resize(stripes, 32)[4:-4, 4:-4].astype(int)
    assert np.abs(inner - 100).max() <= 2


def test_channels_keep_apart() -> None:
    image = np.zeros((40, 40, 3), np.uint8)
    image[:, :, 1] = 77
    assert resize(image, 20)[..., 0].max() == resize(image, 20)[..., 2].max() == 0
    assert set(np.unique(resize(image, 20)[..., 1])) == {77}


def test_the_input_is_left_as_it_was() -> None:
    for image in (noise(40, 50), np.asarray(Image.fromarray(noise(40, 50)))):
        before = image.copy()
        resize(image, 20)[:] = 0
        assert np.array_equal(image, before)


def test_an_image_of_that_size_is_returned_as_it_is() -> None:
    image = noise(32, 32)
    assert resize(image, 32) is image
    turned = resize(image[:, ::-1], 32)
    assert np.array_equal(turned, image[:, ::-1])
    assert turned.flags.c_contiguous


def test_views_are_resized_as_their_pixels() -> None:
    image = noise(60, 80)
    assert np.array_equal(resize(image[::-1, 10:50], 24), resize(image[::-1, 10:50].copy(), 24))


@pytest.mark.parametrize("side", [0, -1])
def test_a_side_below_one_is_refused(side: int) -> None:
    with pytest.raises(ValueError, match=f"^side must be at least 1 pixel, got {side}$"):
        resize(noise(4, 4), side)
