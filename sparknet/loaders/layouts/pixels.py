"""Pixels that were never encoded, given the form of an image file: a netpbm header before them costs nothing."""

import numpy as np


def as_netpbm(pixels: np.ndarray) -> bytes:
    """Give pixels the form of a file, PPM or PGM, that every decoder of images knows.

    Args:
        pixels: (H, W, 3) uint8, RGB, or (H, W) uint8, grey.
    """
    height, width = pixels.shape[:2]
    kind = b"P6" if pixels.ndim == 3 else b"P5"
    return b"%s %d %d 255\n" % (kind, width, height) + pixels.tobytes()
