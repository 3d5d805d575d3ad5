import re
from pathlib import Path

import pytest

from sparknet.errors import ConfigError, ShardError, SourceError
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.layouts.plan import Sample
from tests.sets import SYNSETS, TinySet, tar_bytes

FLAT = {"a.JPEG": b"a", "b.JPEG": b"bb"}
NESTED = {"n01440764.tar": tar_bytes(FLAT), "n01443537.tar": tar_bytes({"c.JPEG": b"c"})}
OFFICIAL = {"ILSVRC2012_val_00000001.JPEG": b"1", "ILSVRC2012_val_00000002.JPEG": b"2"}


def write_tars(folder: Path, **tars: bytes) -> str:
    for stem, data in tars.items():
        (folder / f"{stem}.tar").write_bytes(data)
    return str(folder)


def read_all(url: str, layout: str | None = None) -> list[Sample]:
    plan = plan_source(url, layout)
    return [sample for part in plan.parts for sample in plan.read(part)]


RECOGNISED = {
    "nested": ({"train": tar_bytes(NESTED)}, "train.tar", "ilsvrc"),
    "nested, in a folder of its own": ({"train": tar_bytes(NESTED)}, "", "ilsvrc"),
    "flat official val": ({"val": tar_bytes(OFFICIAL)}, "val.tar", "ilsvrc"),
    "flat official val in a folder": (
        {"x": tar_bytes({"val/" + name: data for name, data in OFFICIAL.items()})}, "", "ilsvrc",
    ),
    "flat official test": ({"t": tar_bytes({"ILSVRC2012_test_00000001.JPEG": b"1"})}, "t.tar", "ilsvrc"),
    "class tars": ({"n01440764": tar_bytes(FLAT), "n01443537": tar_bytes(FLAT)}, "", "ilsvrc"),
    "one class tar": ({"n01440764": tar_bytes(FLAT)}, "n01440764.tar", "ilsvrc"),
    "flat shards": ({"train.00000": tar_bytes(FLAT), "train.00001": tar_bytes(FLAT)}, "", "shards"),
    "one flat shard": ({"n0": tar_bytes(FLAT)}, "n0.tar", "shards"),
    "an empty shard": ({"n0": tar_bytes({})}, "n0.tar", "shards"),
    "class tars beside another": ({"n01440764": tar_bytes(FLAT), "other": tar_bytes(FLAT)}, "", "shards"),
}  # fmt: skip


@pytest.mark.parametrize(("tars", "name", "layout"), RECOGNISED.values(), ids=RECOGNISED)
def test_layouts_are_recognised(tmp_path: Path, tars: dict[str, bytes], name: str, layout: str) -> None:
    url = f"{write_tars(tmp_path, **tars)}/{name}"
    assert plan_source(url).layout == layout
    assert read_all(url) == read_all(url, layout)


def test_the_name_of_a_file_does_not_decide(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(tar_bytes(NESTED))
    assert plan_source(str(tmp_path / "images")).class_names == ("n01440764", "n01443537")


def test_the_official_tars(tiny: TinySet) -> None:
    train, val = read_all(str(tiny.train)), read_all(str(tiny.val))
    assert {sample.key: (sample.data, sample.label) for sample in train} == tiny.train_images
    assert [(sample.key, sample.data) for sample in val] == [(key, data) for key, (data, _) in tiny.val_images.items()]
    assert {sample.label for sample in val} == {None}
    for sample in train + val:
        assert Path(sample.url).read_bytes()[sample.offset :][: len(sample.data)] == sample.data


@pytest.mark.parametrize("url", ["train", "val"])
def test_layouts_by_name(tiny: TinySet, url: str) -> None:
    assert plan_source(str(getattr(tiny, url)), "ilsvrc").layout == "ilsvrc"


def test_the_official_val_tar_read_as_a_shard_is_the_same(tiny: TinySet) -> None:
    assert plan_source(str(tiny.val), "shards").layout == "shards"
    assert read_all(str(tiny.val), "shards") == read_all(str(tiny.val))


def test_a_layout_that_does_not_exist_is_refused(tiny: TinySet) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^no layout 'imagenet'; there are kaggle, mnist, cifar, parquet, ilsvrc, webdataset, shards, folder$",
    ):
        plan_source(str(tiny.train), "imagenet")


def test_a_source_that_is_not_in_the_named_layout_is_refused(tmp_path: Path, tiny: TinySet) -> None:
    url = write_tars(tmp_path, one=tar_bytes(FLAT), two=tar_bytes(FLAT))
    with pytest.raises(SourceError, match=f"^{url}: not in the layout ilsvrc$"):
        plan_source(url, "ilsvrc")
    with pytest.raises(SourceError, match=rf"^{tiny.train}: holds inner tars \({SYNSETS[2]}.tar\): not a flat shard"):
        plan_source(str(tiny.train), "shards")


def test_a_folder_of_neither_tars_nor_images_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    known = "kaggle or mnist or cifar or parquet or ilsvrc or webdataset or shards or folder"
    with pytest.raises(SourceError, match=rf"^{tmp_path}: not in the layout {known}$"):
        plan_source(str(tmp_path))


def test_tars_beside_folders_of_images_are_not_taken_for_the_set(tmp_path: Path) -> None:
    write_tars(tmp_path, one=tar_bytes(FLAT))
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "a.jpg").write_bytes(b"x")
    with pytest.raises(
        SourceError, match=rf"^{tmp_path}: holds tars \(one\.tar\) and folders of images \(cats/a\.jpg\)"
    ):
        plan_source(str(tmp_path))
    assert len(read_all(str(tmp_path), "shards")) == 2


@pytest.mark.parametrize("nested_name", ["a_first", "z_last"])
@pytest.mark.parametrize("flat_shards", [1, 3, 20])
def test_a_nested_tar_beside_flat_ones_is_refused(tmp_path: Path, nested_name: str, flat_shards: int) -> None:
    """Each of its inner tars would count as one bad image."""
    flat = {f"flat{i}": tar_bytes({f"{i}.JPEG": b"x"}) for i in range(flat_shards)}
    url = write_tars(tmp_path, **flat, **{nested_name: tar_bytes(NESTED)})
    with pytest.raises(SourceError, match=rf"^{url}/{nested_name}\.tar: .*n01440764\.tar"):
        read_all(url)


def test_a_file_that_is_no_tar_is_named(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("ILSVRC2012_val_00000001.JPEG 1\n" * 100)
    with pytest.raises(ShardError, match=f"^{path}: not a tar at offset 0: "):
        plan_source(str(path))


def test_parts_are_in_the_order_of_the_names(tmp_path: Path) -> None:
    url = write_tars(tmp_path, **{f"s{i:02d}": tar_bytes({f"{i}": b"x"}) for i in reversed(range(20))})
    assert [sample.key for sample in read_all(url)] == [str(i) for i in range(20)]
    assert all(re.fullmatch(rf"{url}/s\d\d\.tar", part.url) for part in plan_source(url).parts)
