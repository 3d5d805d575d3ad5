from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparknet.errors import ConfigError
from sparknet.loaders.block import Block, write_images
from sparknet.loaders.minibatch import Minibatch, Share, centre_crops, check_crop
from sparknet.loaders.orders import Order, Tail, order_of

SIDE = 12


def images_of(labels: range, side: int = SIDE) -> np.ndarray:
    """Noise, each image from its label: (n, side, side, 3) uint8."""
    images = [np.random.default_rng(label).integers(0, 256, (side, side, 3)) for label in labels]
    return np.array(images, np.uint8).reshape(-1, side, side, 3)


def write_block(folder: Path, labels: range, side: int = SIDE) -> Block:
    """A block of images whose label is their number, so that it tells which one came."""
    path = folder / f"{labels.start}-{labels.stop}-{side}.rgb"
    return write_images(path, images_of(labels, side), np.arange(labels.start, labels.stop))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("minibatch")


def share_of(folder: Path, *sizes: int, seed: int = 1, number: int = 0) -> Share:
    """A share of blocks of these sizes. Image i has label i."""
    starts = np.cumsum([0, *sizes]).tolist()
    blocks = [write_block(folder, range(start, start + size)) for start, size in zip(starts, sizes, strict=False)]
    return Share(blocks, seed, number)


def draw(
    share: Share, first: int, count: int, batch: int = 4, crop: int = SIDE, mirror: bool = False
) -> list[Minibatch]:
    return kept(share.minibatches(first, count, batch=batch, crop=crop, mirror=mirror))


def kept(batches: Iterator[Minibatch]) -> list[Minibatch]:
    """All of them: each is good only until the next is drawn."""
    return [batch._replace(images=batch.images.copy()) for batch in batches]


def same(one: Minibatch, other: Minibatch) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_share_is_its_blocks_end_to_end(folder: Path) -> None:
    share = share_of(folder, 3, 0, 2, 1, 0)
    assert len(share) == 6
    assert share.labels.tolist() == [0, 1, 2, 3, 4, 5]
    indices = np.array([5, 0, 2, 3, 4, 3])
    whole = share.gather(indices, np.zeros((6, 2), np.int64), np.zeros(6, bool), SIDE)
    assert np.array_equal(whole, images_of(range(6))[indices])


def test_a_share_whose_first_blocks_are_empty(folder: Path) -> None:
    share = share_of(folder, 0, 0, 3)
    assert sorted(np.concatenate([batch.labels for batch in draw(share, 0, 3, batch=1)]).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("batch", [1, 3, 7, 10, 24])
def test_minibatches_give_each_sample_once_an_epoch(folder: Path, batch: int) -> None:
    share = share_of(folder, 4, 6)
    labels = np.concatenate([found.labels for found in draw(share, 0, -(-30 // batch), batch=batch)])
    for epoch in range(3):
        assert sorted(labels[epoch * 10 : (epoch + 1) * 10].tolist()) == [*range(10)]
    assert not np.array_equal(labels[:10], labels[10:20])


def test_a_batch_larger_than_the_share_has_some_samples_twice(folder: Path) -> None:
    [batch] = draw(share_of(folder, 2, 1), 0, 1, batch=8)
    assert batch.images.shape == (8, SIDE, SIDE, 3)
    assert set(Counter(batch.labels.tolist()).values()) <= {2, 3}
    assert np.array_equal(batch.images, images_of(range(3))[batch.labels])


@given(batch=st.integers(1, 9), first=st.integers(0, 20), count=st.integers(1, 5))
def test_an_iteration_has_the_same_batch_whatever_it_starts_from(
    folder: Path, batch: int, first: int, count: int
) -> None:
    share = share_of(folder, 3, 4)
    run = draw(share, 0, first + count, batch=batch, crop=5, mirror=True)
    later = draw(share, first, count, batch=batch, crop=5, mirror=True)
    assert all(same(one, other) for one, other in zip(run[first:], later, strict=True))


@pytest.mark.parametrize(("seed", "number"), [(2, 0), (1, 1), (0, 1)])
def test_another_seed_or_worker_draws_differently(folder: Path, seed: int, number: int) -> None:
    ours = draw(share_of(folder, 20), 0, 3, crop=4, mirror=True)
    theirs = draw(share_of(folder, 20, seed=seed, number=number), 0, 3, crop=4, mirror=True)
    for field in ("labels", "corners", "mirrored"):
        assert any(not np.array_equal(getattr(a, field), getattr(b, field)) for a, b in zip(ours, theirs, strict=True))


def test_iterations_are_cropped_and_mirrored_differently(folder: Path) -> None:
    first, second = draw(share_of(folder, 30), 0, 2, batch=30, crop=4, mirror=True)
    assert not np.array_equal(first.corners, second.corners)
    assert not np.array_equal(first.mirrored, second.mirrored)


@pytest.mark.parametrize("crop", [1, 5, SIDE - 1, SIDE])
def test_crops_are_slices_of_their_image(folder: Path, crop: int) -> None:
    for batch in draw(share_of(folder, 5, 3), 0, 10, crop=crop):
        assert batch.images.shape == (4, crop, crop, 3)
        assert batch.images.dtype == np.uint8
        for image, label, (top, left) in zip(batch.images, batch.labels, batch.corners, strict=True):
            whole = images_of(range(int(label), int(label) + 1))[0]
            assert np.array_equal(image, whole[top : top + crop, left : left + crop])


def test_crops_reach_every_place_and_no_further(folder: Path) -> None:
    corners = np.concatenate([batch.corners for batch in draw(share_of(folder, 10), 0, 200, crop=SIDE - 2)])
    assert {(top, left) for top, left in corners.tolist()} == {(top, left) for top in range(3) for left in range(3)}


def test_half_are_mirrored_where_asked(folder: Path) -> None:
    share = share_of(folder, 10)
    flags = np.concatenate([batch.mirrored for batch in draw(share, 0, 250, mirror=True)])
    assert 400 < flags.sum() < 600
    plain, mirrored = draw(share, 0, 20, crop=5), draw(share, 0, 20, crop=5, mirror=True)
    assert not any(batch.mirrored.any() for batch in plain)
    for one, other in zip(plain, mirrored, strict=True):  # the crops are the same, before they are mirrored
        assert np.array_equal(one.corners, other.corners)
        flags = other.mirrored[:, None, None, None]
        assert np.array_equal(other.images, np.where(flags, one.images[:, :, ::-1], one.images))


def test_crops_that_do_not_fit_are_refused(folder: Path) -> None:
    share = share_of(folder, 3)
    for crop in (SIDE + 1, 0, -1):
        message = rf"^crop must be from 1 to the images' side of {SIDE} pixels, got {crop}; use another crop or side$"
        with pytest.raises(ConfigError, match=message):
            draw(share, 0, 1, crop=crop)
        with pytest.raises(ConfigError, match=message):
            next(centre_crops(write_block(folder, range(3)), 2, crop))
        with pytest.raises(ConfigError, match=message):
            check_crop(crop, SIDE)
    check_crop(1, 1)


@pytest.mark.parametrize("batch", [1, 3, 7, 8])
@pytest.mark.parametrize(("crop", "corner"), [(SIDE, 0), (8, 2), (7, 2), (1, 5)])
def test_centre_crops_cover_the_block_once(folder: Path, batch: int, crop: int, corner: int) -> None:
    found = [*centre_crops(write_block(folder, range(7)), batch, crop)]
    assert [len(minibatch.images) for minibatch in found] == [min(batch, 7 - start) for start in range(0, 7, batch)]
    assert np.concatenate([minibatch.labels for minibatch in found]).tolist() == [*range(7)]
    window = slice(corner, corner + crop)
    images = np.concatenate([minibatch.images for minibatch in found])
    assert np.array_equal(images, images_of(range(7))[:, window, window])
    assert np.unique(np.concatenate([minibatch.corners for minibatch in found])).tolist() == [corner]
    assert not any(minibatch.mirrored.any() for minibatch in found)


def test_centre_crops_of_an_empty_block_are_none(folder: Path) -> None:
    assert [*centre_crops(write_block(folder, range(0)), 4, 5)] == []


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_stay_as_they_are(folder: Path, keep: int) -> None:
    share = share_of(folder, 7, 3)
    how: dict[str, Any] = {"batch": 4, "crop": 5, "mirror": True}
    expected = kept(share.minibatches(0, 9, **how))
    found = [*share.minibatches(0, 9, kept=keep, **how)]
    same_as_drawn = [np.array_equal(one.images, other.images) for one, other in zip(found, expected, strict=True)]
    assert same_as_drawn == [False] * (9 - keep) + [True] * keep


@pytest.mark.parametrize(
    ("order", "tail", "sizes"),
    [
        ("epoch", "carried", [4, 4, 4, 4, 4]),
        ("epoch", "kept", [4, 4, 2, 4, 4]),
        ("epoch", "dropped", [4, 4, 4, 4, 4]),
        ("window", "carried", [4, 4, 4, 4, 4]),
        ("replacement", "carried", [4, 4, 4, 4, 4]),
    ],
)
def test_minibatches_follow_the_order_that_is_asked_for(
    folder: Path, order: Order, tail: Tail, sizes: list[int]
) -> None:
    share = share_of(folder, 7, 3)
    found = kept(share.minibatches(0, 5, batch=4, crop=5, mirror=True, order=order, tail=tail))
    indices = order_of(order, tail, samples=10, batch=4, tau=5, key=(1, 0))
    assert [batch.labels.tolist() for batch in found] == [indices(i).tolist() for i in range(5)]
    assert [batch.images.shape for batch in found] == [(size, 5, 5, 3) for size in sizes]
    assert all(len(batch.corners) == len(batch.mirrored) == len(batch.labels) for batch in found)
