import json
from pathlib import Path

import numpy as np
import pytest
from pyspark import SparkContext

from sparknet.errors import LabelError, ShardError, SourceError
from sparknet.loaders.blocks import cache
from sparknet.loaders.layouts import plan_source, tars
from sparknet.loaders.layouts.webdataset import split
from sparknet.loaders.samples import read_samples
from tests.loaders.layouts.test_folder import read
from tests.sets import jpeg, tar_bytes


def shard(start: int, stop: int, kind: str = "cls") -> dict[str, bytes]:
    """Samples of a shard; sample i is of class i % 5."""
    members: dict[str, bytes] = {}
    for i in range(start, stop):
        label = str(i % 5).encode() if kind == "cls" else json.dumps({"label": i % 5, "filename": "x"}).encode()
        members |= {
            f"train/{i:04d}.{kind}": label,
            f"train/{i:04d}.JPG": jpeg(i, i % 3),
            f"train/{i:04d}.txt": b"a cat",
        }
    return members


def write(folder: Path, shards: int = 3, each: int = 7, kind: str = "cls") -> str:
    for i in range(shards):
        (folder / f"in-train-{i:06d}.tar").write_bytes(tar_bytes(shard(i * each, (i + 1) * each, kind)))
    return str(folder)


@pytest.mark.parametrize("kind", ["cls", "json"])
@pytest.mark.parametrize("end", ["", "/in-train-{000000..000002}.tar"])
def test_neighbours_of_a_key_are_a_sample(tmp_path: Path, kind: str, end: str) -> None:
    plan = plan_source(write(tmp_path, kind=kind) + end)
    assert (plan.layout, plan.class_names, plan.labelled) == ("webdataset", (), True)
    samples = read(plan)
    assert [(sample.key, sample.data, sample.label) for sample in samples] == [
        (f"train/{i:04d}.JPG", jpeg(i, i % 3), i % 5) for i in range(21)
    ]
    for sample in samples:
        assert Path(sample.url).read_bytes()[sample.offset :][: len(sample.data)] == sample.data


def test_names_are_divided_at_the_first_dot() -> None:
    assert split("a.b/n01_1.v2.JPG") == ("a.b/n01_1", "v2.jpg")
    assert split("x.jpg") == ("x", "jpg")
    assert split("./x") == ("./x", "")


def test_large_shards_are_cut_between_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = write(tmp_path, shards=2, each=30)
    whole = read(plan_source(url))
    monkeypatch.setattr(tars, "part_bytes", lambda total: total // 9)
    plan = plan_source(url)
    assert len(plan.parts) > 6
    assert read(plan) == whole
    assert sum(part.samples for part in plan.parts) == 60


def test_many_shards_are_a_part_each(tmp_path: Path) -> None:
    plan = plan_source(write(tmp_path, shards=20, each=2))
    assert [part.samples for part in plan.parts] == [None] * 20
    assert len(read(plan)) == 40


@pytest.mark.parametrize(
    ("members", "label"),
    [
        ({"a.jpg": b"x", "a.cls": b" 7\n"}, 7),
        ({"a.jpg": b"x", "a.json": b'{"cls": 3}'}, 3),
        ({"a.jpg": b"x", "a.cls": b"cat"}, None),
        ({"a.jpg": b"x", "a.cls": b"-1"}, None),
        ({"a.jpg": b"x", "a.json": b"{broken"}, None),
        ({"a.jpg": b"x", "a.json": b"[1]"}, None),
        ({"a.jpg": b"x", "a.json": b'{"label": "cat"}'}, None),
        ({"a.jpg": b"x", "a.json": b'{"label": true}'}, None),
    ],
)
def test_a_class_is_a_number_or_none(tmp_path: Path, members: dict[str, bytes], label: int | None) -> None:
    (tmp_path / "x.tar").write_bytes(tar_bytes(members))
    assert [sample.label for sample in read(plan_source(str(tmp_path), "webdataset"))] == [label]


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"a.jpg": b"x", "a.cls": b"1", "b.cls": b"1"}, "sample b at offset 2048 has no image; a sample has one"),
        ({"a.jpg": b"x", "a.png": b"x", "a.cls": b"1"}, r"sample a at offset 0 has two images \(a\.jpg, a\.png\)"),
    ],
)
def test_a_sample_has_one_image(tmp_path: Path, members: dict[str, bytes], what: str) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes(members))
    with pytest.raises(ShardError, match=f"^{path}: {what}"):
        read(plan_source(str(path)))


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    url = write(tmp_path) + "/in-train-{000000..000004}.tar"
    with pytest.raises(
        SourceError, match=rf"2 of 5 files are not there; the first is {tmp_path}/in-train-000003\.tar$"
    ):
        plan_source(url)


def test_the_classes_are_counted_as_the_set_is_cached(sc: SparkContext, tmp_path: Path) -> None:
    samples = read_samples(sc, write(tmp_path)).shuffled(seed=1, partitions=4)
    assert (samples.class_names, samples.labelled) == ((), True)
    blocks = cache(samples, 16)
    assert blocks.class_names == ("0", "1", "2", "3", "4")
    assert blocks.ledger.good == 21
    labels = np.concatenate([block.labels for block in blocks.handles])
    assert np.bincount(labels).tolist() == [5, 4, 4, 4, 4]
    blocks.close()


def test_a_class_that_the_training_set_lacks_is_an_error(sc: SparkContext, tmp_path: Path) -> None:
    samples = read_samples(sc, write(tmp_path), class_names=("a", "b"))
    with pytest.raises(LabelError, match=r": has class 4, but there are 2 classes \(0 to 1\)$"):
        cache(samples, 16)
