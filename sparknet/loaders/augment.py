"""How training images are varied. In: a generator, a number of images. Out: a minibatch's choices, drawn as arrays."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparknet.errors import ConfigError

# Of a resized crop: shares of the image's area, and widths over heights, as Szegedy et al. give them.
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)

_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What a network is shown of a training image.

    Attributes:
        crop: height and width of what it sees, pixels; at most the images' side.
        mirror: whether half of the images are mirrored left to right.
        resized: whether, instead of a square of `crop` pixels, a window of 8 to 100% of the image's area and of 3:4 to
            4:3 is taken and resized to `crop` (Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, section
            6). Where none of ten drawn windows lies within the image, all of it is taken.
        colour: standard deviation of a shift along the principal components of the training set's colours, in their
            variances (Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", NIPS 2012,
            section 4.1, who take 0.1); 0 for none.

    Raises:
        ConfigError: the crop is below 1, or `colour` negative or not finite.
    """

    crop: int
    mirror: bool = False
    resized: bool = False
    colour: float = 0.0

    def __post_init__(self) -> None:
        if self.crop < 1:
            raise ConfigError(f"crop must be at least 1, got {self.crop}")
        if not 0 <= self.colour < math.inf:
            raise ConfigError(f"pca-colour must be finite and not negative, got {self.colour}")


class Choices(NamedTuple):
    """What was chosen for each of n images.

    Attributes:
        corners: (n, 2) int64, row and column of the window that is taken, pixels.
        sizes: (n, 2) int64, its height and width, pixels: the crop's own unless it is resized.
        mirrored: (n,) bool, which are mirrored left to right, after they were cropped.
        colour: (n, 3) float32, how far each is shifted along each component; None where none is.
    """

    corners: np.ndarray
    sizes: np.ndarray
    mirrored: np.ndarray
    colour: np.ndarray | None = None


def choose(rng: np.random.Generator, n: int, side: int, augmentation: Augmentation) -> Choices:
    """Choose for a minibatch.

    Args:
        rng: drawn from in a fixed order.
        n: images.
        side: their height and width, pixels.
        augmentation: what there is to choose.
    """
    crop = augmentation.crop
    if augmentation.resized:
        corners, sizes = _windows(rng, n, side)
    else:
        corners = rng.integers(0, side - crop + 1, (n, 2))
        sizes = np.full((n, 2), crop, np.int64)
    mirrored = rng.random(n) < 0.5 if augmentation.mirror else np.zeros(n, bool)
    colour = rng.normal(0, augmentation.colour, (n, 3)).astype(np.float32) if augmentation.colour else None
    return Choices(corners, sizes, mirrored, colour)


def _windows(rng: np.random.Generator, n: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the windows of resized crops: of ten attempts at each, the first that fits; else the whole image."""
    area = side * side * rng.uniform(*AREA, (n, _ATTEMPTS))
    aspect = np.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1]), (n, _ATTEMPTS)))
    attempts = np.rint(np.sqrt(np.stack([area / aspect, area * aspect], axis=2))).astype(np.int64)
    fits = np.asarray(((attempts >= 1) & (attempts <= side)).all(axis=2))
    sizes = np.where(fits.any(axis=1, keepdims=True), attempts[np.arange(n), fits.argmax(axis=1)], side)
    corners = (rng.random((n, 2)) * (side - sizes + 1)).astype(np.int64)
    return corners, sizes


def check_crop(crop: int, side: int) -> None:
    """Make sure that a crop fits.

    Raises:
        ConfigError: it does not.
    """
    if not 1 <= crop <= side:
        raise ConfigError(
            f"crop must be from 1 to the images' side of {side} pixels, got {crop}; use another crop or side"
        )
