import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.blocks import cache
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.samples import read_samples
from tests.loaders.layouts.test_folder import read
from tests.sets import jpeg

NAMES = ["tench", "goldfish", "dog, domestic"]
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def data(i: int) -> bytes:
    return jpeg(i, i % 3)


def write(path: Path, start: int, stop: int, names: list[str] | None = NAMES, label: str | None = "label") -> str:
    """Write a file as the hub's library does: rows in groups of three."""
    columns: dict[str, Any] = {
        "image": pa.array([{"bytes": data(i), "path": f"{i}.JPEG"} for i in range(start, stop)], STRUCT)
    }
    if label:
        columns[label] = pa.array([i % 3 for i in range(start, stop)], pa.int64())
    table = pa.table(columns)
    if names:
        features = {"image": {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=3)
    return str(path)


def write_set(folder: Path) -> str:
    for number, (start, stop) in enumerate(((0, 7), (7, 8), (8, 12))):
        write(folder / f"train-{number:05d}-of-00003.parquet", start, stop)
    return str(folder)


@pytest.mark.parametrize("end", ["", "/train-{00000..00002}-of-00003.parquet"])
def test_the_images_of_a_set(tmp_path: Path, end: str) -> None:
    plan = plan_source(write_set(tmp_path) + end)
    assert (plan.layout, plan.class_names, plan.labelled) == ("parquet", tuple(NAMES), True)
    assert [part.samples for part in plan.parts] == [3, 3, 1, 1, 3, 1]
    samples = read(plan)
    assert [(sample.data, sample.label) for sample in samples] == [(data(i), i % 3) for i in range(12)]
    assert samples[8].key == "train-00002-of-00003/000000/8.JPEG"
    assert len({sample.key for sample in samples}) == 12


def test_images_are_read_again_by_their_rows(tmp_path: Path) -> None:
    plan = plan_source(write(tmp_path / "x.parquet", 0, 12))
    samples = [read(plan)[i] for i in (0, 2, 3, 11)]
    found = plan.again(samples[0].url, [(sample.offset, len(sample.data)) for sample in samples])
    assert [*found] == [sample.data for sample in samples]


def test_a_cached_block_is_made_again(sc: SparkContext, tmp_path: Path) -> None:
    blocks = cache(read_samples(sc, write_set(tmp_path)).shuffled(seed=1, partitions=3), 16)
    assert blocks.class_names == tuple(NAMES)
    before = blocks.rdd.map(lambda block: block.images().copy()).collect()
    for block in blocks.handles:
        Path(block.path).unlink()
    after = blocks.rdd.map(lambda block: block.images().copy()).collect()
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    blocks.close()


@pytest.mark.parametrize(("label", "labelled"), [("label", True), ("fine_label", True), (None, False)])
def test_without_names_of_classes(tmp_path: Path, label: str | None, labelled: bool) -> None:
    plan = plan_source(write(tmp_path / "x.parquet", 0, 5, None, label))
    assert (plan.class_names, plan.labelled) == ((), labelled)
    assert [sample.label for sample in read(plan)] == ([0, 1, 2, 0, 1] if labelled else [None] * 5)


def test_a_label_of_minus_one_is_none(tmp_path: Path) -> None:
    image = pa.array([{"bytes": b"x", "path": None}, None, {"bytes": None, "path": "y"}], STRUCT)
    pq.write_table(pa.table({"image": image, "label": [-1, None, 2]}), tmp_path / "x.parquet")
    assert [(sample.key, sample.data, sample.label) for sample in read(plan_source(str(tmp_path)))] == [
        ("x/000000", b"x", None),
        ("x/000001", b"", None),
        ("x/000002/y", b"", 2),
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_images_may_be_bytes_alone(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"img": pa.array([b"a", b"b"], kind), "cls": [0, 1]}), tmp_path / "x.parquet")
    assert [(sample.data, sample.label) for sample in read(plan_source(str(tmp_path)))] == [(b"a", 0), (b"b", 1)]


def test_a_folder_of_several_sets(tmp_path: Path) -> None:
    write_set(tmp_path)
    write(tmp_path / "validation-00000-of-00001.parquet", 0, 3)
    first = f"{tmp_path}/train-{{00000..00002}}-of-00003.parquet"
    with pytest.raises(SourceError, match=re.escape(f"{tmp_path}: holds sets (train, validation); name one: {first}")):
        plan_source(str(tmp_path))
    assert len(read(plan_source(first))) == 12


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, "none of its columns (text) holds images; one of image, img, jpg, png is to be of bytes"),
        ({"image": ["a"], "label": [1]}, "none of its columns (image, label) holds images"),
        ({"image": [b"a"], "label": ["cat"]}, "its column label is of string; classes are whole numbers"),
    ],
)
def test_other_columns_are_named(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(SourceError, match=f"^{re.escape(f'{path}: {message}')}"):
        plan_source(str(tmp_path))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"404: Not Found, and so on")
    with pytest.raises(ShardError, match=rf"^{path}: not a Parquet file: .*; copy or fetch it again$"):
        plan_source(str(path))
    write(path, 0, 9)
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(400) + whole[600:])
    with pytest.raises(ShardError, match=rf"^{path}: row group 0 is damaged: "):
        read(plan_source(str(path)))
    path.write_bytes(whole[:-20])
    with pytest.raises(ShardError, match=rf"^{path}: not a Parquet file: "):
        plan_source(str(path))
    write(path, 0, 9)
    write(tmp_path / "y.parquet", 0, 9, None, None)
    with pytest.raises(ShardError, match=rf"^{tmp_path}/y.parquet: has not the columns of {path}$"):
        plan_source(str(tmp_path))
