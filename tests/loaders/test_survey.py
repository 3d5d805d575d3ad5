import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage
from pyspark import SparkContext

from sparknet.errors import RunError, SampleError, ShardError
from sparknet.loaders.labels import Labels
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.samples import BadSample, Ledger, read_samples
from sparknet.loaders.survey import Survey, Thumb, save_sheet, survey
from tests.sets import SYNSETS, TinySet, encode, jpeg, tar_bytes


def write_tar(folder: Path, members: dict[str, bytes]) -> str:
    path = folder / "images.tar"
    path.write_bytes(tar_bytes(members))
    return str(path)


def opened(thumb: Thumb) -> np.ndarray:
    return np.asarray(PillowImage.open(io.BytesIO(thumb.png)))


def test_the_survey_of_a_train_tar(sc: SparkContext, tiny: TinySet) -> None:
    found = survey(read_samples(sc, str(tiny.train)))
    assert found.ledger == Ledger(63, 63)
    assert found.unlabelled == 0
    assert found.per_class == {0: 20, 1: 21, 2: 22}
    assert found.sizes == {(40, 32): 63}
    assert found.thumbs == ()


def test_the_survey_of_a_mixed_tar(sc: SparkContext, tmp_path: Path) -> None:
    wide, tall = encode(np.zeros((4, 9, 3), np.uint8), "PNG"), jpeg(1, 0, size=(10, 30))
    url = write_tar(tmp_path, {"a": wide, "b": tall, "c": b"broken", "d": wide, "e": b"", "f": wide[:40]})
    labels = Labels(url="val.txt", by_key={"a": 1, "b": 0, "c": 0}, classes=2)
    found = survey(read_samples(sc, url, labels=labels))
    assert (found.ledger.seen, found.ledger.good, found.unlabelled) == (6, 3, 1)
    assert found.per_class == {0: 1, 1: 1}
    assert found.sizes == {(9, 4): 2, (10, 30): 1}
    content = Path(url).read_bytes()
    assert found.ledger.bad[:2] == (
        BadSample("c", url, content.index(b"broken"), "not an image in any format that Pillow knows"),
        BadSample("e", url, found.ledger.bad[1].offset, "no bytes (an empty file, or a link)"),
    )
    assert [bad.key for bad in found.ledger.bad] == ["c", "e", "f"]


def test_a_source_without_a_good_image_is_an_error(sc: SparkContext, tmp_path: Path) -> None:
    url = write_tar(tmp_path, {"a": b"broken", "b": b""})
    with pytest.raises(SampleError, match=rf"^{url}: all 2 samples are bad; the first, a: not an image"):
        survey(read_samples(sc, url))
    with pytest.raises(SampleError, match=rf"^{url}: holds no sample$"):
        survey(read_samples(sc, write_tar(tmp_path, {})))


def test_a_damaged_source_is_our_error(sc: SparkContext, tiny: TinySet, tmp_path: Path) -> None:
    content = bytearray(tiny.train.read_bytes())
    content[plan_source(str(tiny.train)).parts[1].start] ^= 0xFF
    path = tmp_path / "train.tar"
    path.write_bytes(content)
    with pytest.raises(ShardError, match=f"^{path}: not a tar at offset "):
        survey(read_samples(sc, str(path)))


def test_thumbs_are_the_same_whatever_the_partitions(sc: SparkContext, tiny: TinySet) -> None:
    samples = read_samples(sc, str(tiny.train))
    found = survey(samples, thumbs=12)
    assert len(found.thumbs) == 12
    assert [thumb.rank for thumb in found.thumbs] == sorted({thumb.rank for thumb in found.thumbs})
    assert survey(samples, thumbs=12).thumbs == found.thumbs
    assert survey(samples.shuffled(seed=3, partitions=5), thumbs=12).thumbs == found.thumbs
    assert survey(samples, thumbs=5).thumbs == found.thumbs[:5]
    assert len({thumb.label for thumb in found.thumbs}) > 1  # not the first class alone


def test_all_images_are_thumbs_where_there_are_few(sc: SparkContext, tiny: TinySet) -> None:
    found = survey(read_samples(sc, str(tiny.val)), thumbs=100)
    assert len(found.thumbs) == 31
    assert {thumb.label for thumb in found.thumbs} == {None}
    assert {opened(thumb).shape for thumb in found.thumbs} == {(64, 80, 3)}  # 40 x 32, doubled


def test_a_thumb_shows_what_the_network_gets(sc: SparkContext, tmp_path: Path) -> None:
    """Also of 16-bit pixels, which Pillow alone would show white."""
    grey = np.full((48, 48), 100 * 256, np.uint16)
    large = np.zeros((300, 600, 3), np.uint8)
    url = write_tar(tmp_path, {"a": encode(grey, "PNG"), "b": encode(large, "PNG")})
    shown = {opened(thumb).shape: opened(thumb) for thumb in survey(read_samples(sc, url), thumbs=2).thumbs}
    assert set(shown) == {(96, 96, 3), (48, 96, 3)}
    assert np.unique(shown[96, 96, 3]).tolist() == [100]


def red_thumb(rank: int, label: int | None) -> Thumb:
    return Thumb(rank, encode(np.full((96, 96, 3), (250, 0, 0), np.uint8), "PNG"), label)


@pytest.mark.parametrize(("number", "size"), [(1, (1004, 118)), (10, (1004, 118)), (11, (1004, 232)), (0, (1004, 4))])
def test_the_sheet_has_a_row_for_ten(tmp_path: Path, number: int, size: tuple[int, int]) -> None:
    found = Survey(thumbs=tuple(red_thumb(i, i % 3) for i in range(number)))
    save_sheet(found, SYNSETS, tmp_path / "sheet.png")
    with PillowImage.open(tmp_path / "sheet.png") as sheet:
        assert (sheet.format, sheet.size) == ("PNG", size)
        red = Counter(map(tuple, np.asarray(sheet).reshape(-1, 3).tolist()))[250, 0, 0]
    assert red == number * 96 * 96


def test_each_picture_of_the_sheet_is_captioned(tmp_path: Path) -> None:
    found = Survey(thumbs=(red_thumb(1, 0), red_thumb(2, None)))
    save_sheet(found, ("n01440764, a name that is too long for it",), tmp_path / "sheet.png")
    pixels = np.asarray(PillowImage.open(tmp_path / "sheet.png"))
    for x in (4, 104):
        assert pixels[101:114, x : x + 96].min() < 100
    assert pixels[101:114, 204:].min() == 255


def test_a_sheet_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "sheet.png"
    with pytest.raises(RunError, match=f"^{path}: cannot write the sheet: No such file or directory$"):
        save_sheet(Survey(), (), path)
