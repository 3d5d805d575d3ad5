"""What is chosen for training images: windows that lie within them, of the shares and shapes that are asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparknet.errors import ConfigError
from sparknet.loaders.augment import Augmentation, choose


@given(
    side=st.integers(1, 300),
    n=st.integers(0, 50),
    seed=st.integers(0, 2**32),
    mirror=st.booleans(),
    resized=st.booleans(),
    data=st.data(),
)
def test_windows_lie_within_the_image(
    side: int, n: int, seed: int, mirror: bool, resized: bool, data: st.DataObject
) -> None:
    crop = data.draw(st.integers(1, side))
    how = Augmentation(crop=crop, mirror=mirror, resized=resized, colour=0.1)
    found = choose(np.random.default_rng(seed), n, side, how)
    assert found.corners.shape == found.sizes.shape == (n, 2)
    assert found.mirrored.shape == (n,)
    assert found.colour is not None
    assert found.colour.shape == (n, 3)
    assert found.colour.dtype == np.float32
    assert (found.corners >= 0).all()
    assert (found.sizes >= 1).all()
    assert (found.corners + found.sizes <= side).all()
    if not resized:
        assert (found.sizes == crop).all()
    again = choose(np.random.default_rng(seed), n, side, how)
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))  # type: ignore[arg-type]


def test_resized_windows_have_the_shares_and_shapes_of_the_paper() -> None:
    found = choose(np.random.default_rng(0), 4000, 256, Augmentation(crop=224, resized=True))
    height, width = found.sizes.T
    share, aspect = height * width / 256**2, width / height
    assert 0.075 < share.min() < 0.085
    assert share.max() <= 1
    assert 0.46 < np.median(share) < 0.51  # uniform, but that large ones fit at fewer shapes
    assert (aspect > 0.73).all()
    assert (aspect < 1.36).all()
    assert abs(np.median(np.log(aspect))) < 0.02
    room = 256 - found.sizes
    places = (found.corners / np.maximum(room, 1))[room > 20]
    assert abs(places.mean() - 0.5) < 0.02
    assert (found.corners[room == 0] == 0).all()


def test_shifts_of_colour_have_their_standard_deviation() -> None:
    found = choose(np.random.default_rng(0), 4000, 8, Augmentation(crop=8, colour=0.1))
    assert found.colour is not None
    assert np.allclose(found.colour.std(axis=0), 0.1, rtol=0.05)
    assert np.allclose(found.colour.mean(axis=0), 0, atol=0.01)


def test_what_is_not_asked_for_changes_no_choice() -> None:
    """A run without shifts of colour has the bits that it had before there were any."""
    plain = choose(np.random.default_rng(5), 9, 20, Augmentation(crop=7, mirror=True))
    shifted = choose(np.random.default_rng(5), 9, 20, Augmentation(crop=7, mirror=True, colour=0.1))
    assert plain.colour is None
    assert all(np.array_equal(one, other) for one, other in zip(plain[:3], shifted[:3], strict=True))
    unmirrored = choose(np.random.default_rng(5), 9, 20, Augmentation(crop=7))
    assert np.array_equal(unmirrored.corners, plain.corners)
    assert not unmirrored.mirrored.any()


@pytest.mark.parametrize("colour", [-0.1, float("nan"), float("inf")])
def test_shifts_that_cannot_be(colour: float) -> None:
    with pytest.raises(ConfigError, match=r"^pca-colour must be finite and not negative, got "):
        Augmentation(crop=1, colour=colour)
