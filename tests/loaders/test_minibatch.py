from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparknet.errors import ConfigError
from sparknet.loaders.augment import Augmentation, Choices, check_crop
from sparknet.loaders.block import Block, write_images
from sparknet.loaders.minibatch import Minibatch, Share, crops_to_score
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
    return kept(share.minibatches(first, count, batch=batch, augmentation=Augmentation(crop=crop, mirror=mirror)))


def kept(batches: Iterator[Minibatch]) -> list[Minibatch]:
    """All of them: each is good only until the next is drawn."""
    return [batch._replace(images=batch.images.copy()) for batch in batches]


def arrays(batch: Minibatch) -> list[np.ndarray]:
    return [array for array in (batch.images, batch.labels, *batch.choices) if array is not None]


def same(one: Minibatch, other: Minibatch) -> bool:
    """Whether two minibatches are the same to the bit, choices and all."""
    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


def test_a_share_is_its_blocks_end_to_end(folder: Path) -> None:
    share = share_of(folder, 3, 0, 2, 1, 0)
    assert len(share) == 6
    assert share.labels.tolist() == [0, 1, 2, 3, 4, 5]
    indices = np.array([5, 0, 2, 3, 4, 3])
    whole = share.gather(indices, Choices(np.zeros((6, 2), int), np.full((6, 2), SIDE), np.zeros(6, bool)), SIDE)
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
    picks: list[Callable[[Minibatch], np.ndarray]] = [
        lambda batch: batch.labels,
        lambda batch: batch.choices.corners,
        lambda batch: batch.choices.mirrored,
    ]
    for pick in picks:
        assert not np.array_equal([pick(batch) for batch in ours], [pick(batch) for batch in theirs])


def test_iterations_are_cropped_and_mirrored_differently(folder: Path) -> None:
    first, second = draw(share_of(folder, 30), 0, 2, batch=30, crop=4, mirror=True)
    assert not np.array_equal(first.choices.corners, second.choices.corners)
    assert not np.array_equal(first.choices.mirrored, second.choices.mirrored)


@pytest.mark.parametrize("crop", [1, 5, SIDE - 1, SIDE])
def test_crops_are_slices_of_their_image(folder: Path, crop: int) -> None:
    for batch in draw(share_of(folder, 5, 3), 0, 10, crop=crop):
        assert batch.images.shape == (4, crop, crop, 3)
        assert batch.images.dtype == np.uint8
        for image, label, (top, left) in zip(batch.images, batch.labels, batch.choices.corners, strict=True):
            whole = images_of(range(int(label), int(label) + 1))[0]
            assert np.array_equal(image, whole[top : top + crop, left : left + crop])


def test_crops_reach_every_place_and_no_further(folder: Path) -> None:
    corners = np.concatenate([batch.choices.corners for batch in draw(share_of(folder, 10), 0, 200, crop=SIDE - 2)])
    assert {(top, left) for top, left in corners.tolist()} == {(top, left) for top in range(3) for left in range(3)}


def test_half_are_mirrored_where_asked(folder: Path) -> None:
    share = share_of(folder, 10)
    flags = np.concatenate([batch.choices.mirrored for batch in draw(share, 0, 250, mirror=True)])
    assert 400 < flags.sum() < 600
    plain, mirrored = draw(share, 0, 20, crop=5), draw(share, 0, 20, crop=5, mirror=True)
    assert not any(batch.choices.mirrored.any() for batch in plain)
    for one, other in zip(plain, mirrored, strict=True):  # the crops are the same, before they are mirrored
        assert np.array_equal(one.choices.corners, other.choices.corners)
        flags = other.choices.mirrored[:, None, None, None]
        assert np.array_equal(other.images, np.where(flags, one.images[:, :, ::-1], one.images))


def test_crops_that_do_not_fit_are_refused(folder: Path) -> None:
    share = share_of(folder, 3)
    for crop in (0, -1):
        with pytest.raises(ConfigError, match=f"^crop must be at least 1, got {crop}$"):
            Augmentation(crop=crop)
    for crop in (SIDE + 1, 0, -1):
        message = rf"^crop must be from 1 to the images' side of {SIDE} pixels, got {crop}; use another crop or side$"
        if crop > 0:
            with pytest.raises(ConfigError, match=message):
                draw(share, 0, 1, crop=crop)
        with pytest.raises(ConfigError, match=message):
            next(crops_to_score(write_block(folder, range(3)), 2, crop))
        with pytest.raises(ConfigError, match=message):
            check_crop(crop, SIDE)
    check_crop(1, 1)


@pytest.mark.parametrize("batch", [1, 3, 7, 8])
@pytest.mark.parametrize(("crop", "corner"), [(SIDE, 0), (8, 2), (7, 2), (1, 5)])
def test_centre_crops_cover_the_block_once(folder: Path, batch: int, crop: int, corner: int) -> None:
    found = [*crops_to_score(write_block(folder, range(7)), batch, crop)]
    assert [len(minibatch.images) for minibatch in found] == [min(batch, 7 - start) for start in range(0, 7, batch)]
    assert np.concatenate([minibatch.labels for minibatch in found]).tolist() == [*range(7)]
    window = slice(corner, corner + crop)
    images = np.concatenate([minibatch.images for minibatch in found])
    assert np.array_equal(images, images_of(range(7))[:, window, window])
    assert np.unique(np.concatenate([minibatch.choices.corners for minibatch in found])).tolist() == [corner]
    assert not any(minibatch.choices.mirrored.any() for minibatch in found)


def test_centre_crops_of_an_empty_block_are_none(folder: Path) -> None:
    assert [*crops_to_score(write_block(folder, range(0)), 4, 5)] == []


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_stay_as_they_are(folder: Path, keep: int) -> None:
    share = share_of(folder, 7, 3)
    how: dict[str, Any] = {"batch": 4, "augmentation": Augmentation(crop=5, mirror=True)}
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
    found = kept(
        share.minibatches(0, 5, batch=4, augmentation=Augmentation(crop=5, mirror=True), order=order, tail=tail)
    )
    indices = order_of(order, tail, samples=10, batch=4, tau=5, key=(1, 0))
    assert [batch.labels.tolist() for batch in found] == [indices(i).tolist() for i in range(5)]
    assert [batch.images.shape for batch in found] == [(size, 5, 5, 3) for size in sizes]
    assert all(len(batch.choices.corners) == len(batch.choices.mirrored) == len(batch.labels) for batch in found)


@pytest.mark.parametrize("mirror", [True, False])
def test_resized_crops_are_the_resized_windows(folder: Path, mirror: bool) -> None:
    how = Augmentation(crop=7, mirror=mirror, resized=True)
    seen = set()
    for batch in kept(share_of(folder, 6).minibatches(0, 12, batch=4, augmentation=how)):
        corners, sizes, mirrored, _ = batch.choices
        for image, label, (top, left), (height, width), flip in zip(
            batch.images, batch.labels.tolist(), corners, sizes, mirrored, strict=True
        ):
            window = images_of(range(label, label + 1))[0, top : top + height, left : left + width]
            expected = resize_any(window, 7)
            assert np.array_equal(image, expected[:, ::-1] if flip else expected)
            seen.add((int(height), int(width)))
    assert len(seen) > 10


def resize_any(image: np.ndarray, side: int) -> np.ndarray:
    """torch's own, whatever the size; a window of the crop's size is taken as it is."""
    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(pixels, (side, side), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize("batch", [1, 3, 7, 8])
def test_ten_crops_are_the_corners_and_the_centre_and_their_mirrors(folder: Path, batch: int) -> None:
    found = [*crops_to_score(write_block(folder, range(7)), batch, 5, views=10)]
    images = np.concatenate([minibatch.images for minibatch in found]).reshape(7, 10, 5, 5, 3)
    far, middle = SIDE - 5, (SIDE - 5) // 2
    places = [(0, 0), (0, far), (far, 0), (far, far), (middle, middle)]
    for image, views in zip(images_of(range(7)), images, strict=True):
        for (top, left), plain, mirrored in zip(places, views[:5], views[5:], strict=True):
            assert np.array_equal(plain, image[top : top + 5, left : left + 5])
            assert np.array_equal(mirrored, plain[:, ::-1])
    assert np.concatenate([minibatch.labels for minibatch in found]).tolist() == np.repeat(range(7), 10).tolist()
    corners = np.concatenate([minibatch.choices.corners for minibatch in found])
    assert corners.tolist() == [*map(list, places * 2)] * 7
    flags = np.concatenate([minibatch.choices.mirrored for minibatch in found])
    assert flags.tolist() == ([False] * 5 + [True] * 5) * 7


@pytest.mark.parametrize("quality", [90, 100])
def test_jpegs_of_a_block_are_decoded_as_they_are_drawn(folder: Path, quality: int) -> None:
    smooth = np.asarray([resize_any(image[:3, :3], SIDE) for image in images_of(range(5))])
    block = write_images(folder / f"{quality}.jpegs", smooth, np.arange(5), quality)
    images = block.images()
    assert np.abs(images.astype(int) - smooth).mean() < 8  # half of the colours are not kept
    share = Share([block], 1, 0)
    for batch in kept(share.minibatches(0, 4, batch=3, augmentation=Augmentation(crop=6))):
        for image, label, (top, left) in zip(batch.images, batch.labels, batch.choices.corners, strict=True):
            assert np.array_equal(image, images[label, top : top + 6, left : left + 6])
    assert np.array_equal(block.sum(), images.sum(axis=0, dtype=np.int64))
    [scored] = crops_to_score(block, 5, SIDE)
    assert np.array_equal(scored.images, images)
