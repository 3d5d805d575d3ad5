from pathlib import Path

import pytest

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.layouts import shards
from sparknet.loaders.layouts.tars import read_tar
from sparknet.loaders.source import list_source
from tests.sets import tar_bytes


@pytest.mark.parametrize("number", [1, 2, 20])
def test_a_folder_of_shards_gives_the_members_of_all(tmp_path: Path, number: int) -> None:
    for i in range(number):
        (tmp_path / f"{i:03d}.tar").write_bytes(tar_bytes({f"{i}_{j}.JPEG": bytes([i, j]) for j in range(i % 4)}))
    plan = shards.plan(list_source(str(tmp_path)))
    assert plan is not None
    assert (plan.layout, plan.class_names, plan.read) == ("shards", (), read_tar)
    samples = [sample for part in plan.parts for sample in plan.read(part)]
    assert [(sample.key, sample.data) for sample in samples] == [
        (f"{i}_{j}.JPEG", bytes([i, j])) for i in range(number) for j in range(i % 4)
    ]
    assert {sample.label for sample in samples} <= {None}


def test_a_nested_tar_is_no_shard(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes({"n1.tar": tar_bytes({})}))
    with pytest.raises(SourceError, match=rf"^{path}: holds inner tars \(n1.tar\): not a flat shard; name that file"):
        shards.plan(list_source(str(path)))


def test_a_damaged_shard_among_many_is_found_where_it_is_read(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i:02d}.tar").write_bytes(tar_bytes({f"{j}": bytes(600) for j in range(3)}))
    bad = tmp_path / "11.tar"
    bad.write_bytes(bad.read_bytes()[: 2 * 1536])
    plan = shards.plan(list_source(str(tmp_path)))
    assert plan is not None
    keys: list[str] = []
    with pytest.raises(ShardError, match=f"^{bad}: cut off at offset 3072: "):
        keys.extend(sample.key for part in plan.parts for sample in plan.read(part))
    assert keys == ["0", "1", "2"] * 11 + ["0", "1"]
