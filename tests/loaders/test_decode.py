import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sparknet.errors import DecodeError
from sparknet.loaders.decode import PIXEL_LIMIT, decode
from tests.sets import encode, jpeg


def photo(height: int = 60, width: int = 90) -> np.ndarray:
    """A smooth picture with a little noise, as JPEG is made for: (H, W, 3) uint8."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin(rows / 9 + k) * np.cos(columns / (7 + k)) for k in range(3)]
    noise = np.random.default_rng(7).normal(0, 4, (height, width, 3))
    return np.clip(np.stack(waves, axis=-1) + noise, 0, 255).astype(np.uint8)


def saved(image: Image.Image, format_name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format_name, **options)
    return out.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def difference(one: np.ndarray, other: np.ndarray) -> int:
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other.astype(int)).max())


def png_claiming(width: int, height: int) -> bytes:
    """A PNG of 70 bytes whose header claims a size."""
    out = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return out


@pytest.mark.parametrize(
    "options", [{}, {"quality": 95}, {"progressive": True}, {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"}], ids=str
)
def test_a_jpeg_is_what_pillow_makes_of_it(options: dict[str, Any]) -> None:
    data = saved(Image.fromarray(photo()), "JPEG", **options)
    pixels = decode(data)
    assert pixels.shape == (60, 90, 3)
    assert pixels.dtype == np.uint8
    assert difference(pixels, by_pillow(data)) <= 2


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (17, 33)])
def test_odd_sizes(size: tuple[int, int]) -> None:
    data = saved(Image.fromarray(photo(*size)), "JPEG")
    assert difference(decode(data), by_pillow(data)) <= 3


def test_the_channels_are_red_green_blue() -> None:
    red = np.zeros((16, 16, 3), np.uint8)
    red[:, :, 0] = 250
    for data in (encode(red, "JPEG"), encode(red, "PNG")):
        assert difference(decode(data), red) <= 2


def test_a_grey_jpeg_has_three_equal_channels() -> None:
    data = saved(Image.fromarray(photo()).convert("L"), "JPEG")
    pixels = decode(data)
    assert difference(pixels, by_pillow(data)) <= 1
    assert np.array_equal(pixels[:, :, 0], pixels[:, :, 1])
    assert np.array_equal(pixels[:, :, 0], pixels[:, :, 2])


def test_a_jpeg_in_rgb_is_not_taken_for_ycc() -> None:
    data = saved(Image.fromarray(photo()), "JPEG", keep_rgb=True, quality=95)
    assert difference(decode(data), by_pillow(data)) <= 2
    assert difference(decode(data), photo()) <= 40


def test_a_jpeg_in_cmyk_is_what_pillow_makes_of_it() -> None:
    data = saved(Image.fromarray(photo()).convert("CMYK"), "JPEG", quality=95)
    assert np.array_equal(decode(data), by_pillow(data))
    assert difference(decode(data), photo()) <= 60  # not inverted


@pytest.mark.parametrize("factors", [0x31, 0x13, 0x14])
def test_a_jpeg_with_a_rare_subsampling_is_what_pillow_makes_of_it(factors: int) -> None:
    """libjpeg-turbo's fast interface has no name for it, which once ended the whole pass."""
    data = bytearray(saved(Image.fromarray(photo()), "JPEG"))
    data[data.index(b"\xff\xc0") + 11] = factors
    assert np.array_equal(decode(bytes(data)), by_pillow(bytes(data)))


def test_bytes_behind_the_end_do_no_harm() -> None:
    data = jpeg(1, 0)
    assert np.array_equal(decode(data + bytes(100)), decode(data))
    assert np.array_equal(decode(data + b"\xff\xd8\xff"), decode(data))


def test_the_bytes_decide_whatever_the_name() -> None:
    """n02105855_2933.JPEG of ILSVRC2012 is a PNG."""
    for format_name in ("PNG", "BMP", "WEBP", "GIF", "TIFF"):
        data = saved(Image.fromarray(photo()), format_name, **({"lossless": True} if format_name == "WEBP" else {}))
        assert np.array_equal(decode(data), by_pillow(data))
    assert np.array_equal(decode(encode(photo(), "PNG")), photo())


def test_a_palette_is_looked_up() -> None:
    colours = np.zeros((8, 8, 3), np.uint8)
    colours[:4, :, 0], colours[4:, :, 2] = 200, 100
    data = saved(Image.fromarray(colours).convert("P", palette=Image.Palette.ADAPTIVE), "PNG")
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == "P"
    assert np.array_equal(decode(data), colours)


def test_transparency_is_left_out() -> None:
    rgba = np.dstack([photo(), np.tile(np.arange(90, dtype=np.uint8), (60, 1))])
    assert np.array_equal(decode(encode(rgba, "PNG")), photo())


def test_grey_and_black_and_white_pngs_have_three_channels() -> None:
    grey = photo()[:, :, 1]
    assert np.array_equal(decode(encode(grey, "PNG")), np.dstack([grey] * 3))
    bits = saved(Image.fromarray(grey).convert("1"), "PNG")
    assert set(np.unique(decode(bits))) == {0, 255}
    assert decode(bits).shape == (60, 90, 3)


@pytest.mark.parametrize("format_name", ["PNG", "TIFF"])
def test_16_bit_grey_keeps_its_high_byte(format_name: str) -> None:
    wide = (np.arange(64 * 64, dtype=np.uint32).reshape(64, 64) * 16).astype(np.uint16)
    data = encode(wide, format_name)
    assert np.array_equal(decode(data), np.dstack([(wide >> 8).astype(np.uint8)] * 3))


def test_32_bit_pixels_are_refused_not_clipped() -> None:
    for image in (Image.new("I", (4, 4), 70_000), Image.new("F", (4, 4), 0.5)):
        with pytest.raises(DecodeError, match=rf"^32-bit pixels \(mode {image.mode}\)"):
            decode(saved(image, "TIFF"))


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
def test_a_truncated_jpeg_is_an_error(keep: float) -> None:
    data = saved(Image.fromarray(photo(200, 200)), "JPEG", quality=95)
    with pytest.raises(DecodeError, match=r"^damaged JPEG: Premature end of JPEG file$"):
        decode(data[: int(len(data) * keep)])


@given(keep=st.floats(0, 1, exclude_max=True), progressive=st.booleans())
def test_a_jpeg_cut_anywhere_is_an_error(keep: float, progressive: bool) -> None:
    data = saved(Image.fromarray(photo()), "JPEG", progressive=progressive)
    with pytest.raises(DecodeError):
        decode(data[: int(keep * len(data))])


def test_a_jpeg_with_a_hole_is_an_error() -> None:
    data = bytearray(saved(Image.fromarray(photo(200, 200)), "JPEG", quality=95))
    data[len(data) // 2 : len(data) // 2 + 500] = bytes(500)
    with pytest.raises(DecodeError, match=r"^damaged JPEG: Corrupt JPEG data"):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no bytes (an empty file, or a link)"),
        (b"hello", "not an image in any format that Pillow knows"),
        (bytes(1000), "not an image in any format that Pillow knows"),
        (b"\xff\xd8\xff", "not an image in any format that Pillow knows"),
        (encode(photo(), "PNG")[:1000], "damaged image: image file is truncated"),
    ],
)
def test_what_is_no_image_is_an_error_that_says_so(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError) as raised:
        decode(data)
    assert str(raised.value).startswith(message)


@given(st.binary(max_size=300), st.sampled_from([b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF"]))
def test_garbage_is_a_decode_error_and_nothing_else(data: bytes, magic: bytes) -> None:
    try:
        pixels = decode(magic + data, pixel_limit=10_000)
    except DecodeError as error:
        assert "\n" not in str(error)
        return
    assert pixels.shape[2] == 3


@given(data=st.data(), format_name=st.sampled_from(["JPEG", "PNG", "GIF", "WEBP"]))
def test_changed_bytes_give_an_image_or_a_decode_error(data: st.DataObject, format_name: str) -> None:
    changed = bytearray(encode(photo(20, 30), format_name))
    for _ in range(data.draw(st.integers(1, 5))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = decode(bytes(changed), pixel_limit=1_000_000)
    except DecodeError as error:
        assert "\n" not in str(error)
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3


@pytest.mark.parametrize("format_name", ["JPEG", "PNG"])
def test_the_limit_is_the_most_pixels_there_may_be(format_name: str) -> None:
    data = encode(photo(20, 30), format_name)
    assert decode(data, pixel_limit=600).shape == (20, 30, 3)
    with pytest.raises(DecodeError, match=r"^30 x 20 pixels are above the limit of 599$"):
        decode(data, pixel_limit=599)


def test_the_limit_is_checked_before_anything_is_decoded() -> None:
    """The bytes could not be decoded: what complains is the check."""
    with pytest.raises(DecodeError, match=rf"^10000 x 10000 pixels are above the limit of {PIXEL_LIMIT}$"):
        decode(png_claiming(10_000, 10_000))
    with pytest.raises(DecodeError, match=r"^too large: Image size \(3600000000 pixels\) exceeds limit"):
        decode(png_claiming(60_000, 60_000))
    small = bytearray(jpeg(1, 0))
    start = small.index(b"\xff\xc0") + 5
    small[start : start + 4] = struct.pack(">HH", 9_500, 9_500)
    with pytest.raises(DecodeError, match=rf"^9500 x 9500 pixels are above the limit of {PIXEL_LIMIT}$"):
        decode(bytes(small))


def test_the_same_bytes_give_the_same_pixels() -> None:
    assert np.array_equal(decode(jpeg(3, 1)), decode(jpeg(3, 1)))
