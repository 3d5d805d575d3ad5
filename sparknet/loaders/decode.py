"""From bytes to pixels. In: an encoded image. Out: (H, W, 3) uint8, RGB.

Plain JPEGs go through libjpeg-turbo, everything else through Pillow; the bytes decide, not the name.
"""

import io
import warnings

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from sparknet.errors import DecodeError

# A small file can claim a huge image. The largest photograph in ILSVRC2012 has 20 million pixels.
PIXEL_LIMIT = 89_478_485


def decode(data: bytes, pixel_limit: int = PIXEL_LIMIT) -> np.ndarray:
    """Decode one image.

    Args:
        data: JPEG, PNG, or what else Pillow knows.
        pixel_limit: the most pixels an image may have; checked before any is decoded.

    Returns:
        (H, W, 3) uint8, RGB.

    Raises:
        DecodeError: not an image, damaged, cut off, or too large. The message says which.
    """
    if not data:
        raise DecodeError("no bytes (an empty file, or a link)")
    if data.startswith(b"\xff\xd8\xff"):
        try:
            height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
        except (ValueError, KeyError):  # KeyError: a subsampling that simplejpeg has no name for
            colorspace = None
        # CMYK and YCCK come in variants (Adobe's inverted) that Pillow knows, as it does rarer kinds of subsampling.
        if colorspace in ("YCbCr", "RGB", "Gray"):
            _check_size(height, width, pixel_limit)
            try:
                pixels: np.ndarray = simplejpeg.decode_jpeg(data, colorspace="RGB")
            except ValueError as error:
                raise DecodeError(f"damaged JPEG: {error}") from error
            return pixels
    return _decode_by_pillow(data, pixel_limit)


def _check_size(height: int, width: int, pixel_limit: int) -> None:
    if height * width > pixel_limit:
        raise DecodeError(f"{width} x {height} pixels are above the limit of {pixel_limit}")


def _decode_by_pillow(data: bytes, pixel_limit: int) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images and of odd metadata; the size is checked here, the rest does no harm.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                _check_size(image.height, image.width, pixel_limit)
                if image.mode in ("I", "F"):
                    raise DecodeError(f"32-bit pixels (mode {image.mode}), whose black and white nothing tells")
                if image.mode.startswith("I;16"):  # convert() would clip 16 bits at 255
                    wide = np.asarray(image)
                    return np.repeat((wide >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
                return np.asarray(image.convert("RGB"))
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:  # above a limit of Pillow's own
        raise DecodeError(f"too large: {_reason(error)}") from error
    except UnidentifiedImageError as error:  # its own message holds the address of the buffer
        raise DecodeError("not an image in any format that Pillow knows") from error
    except Exception as error:
        raise DecodeError(f"damaged image: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
