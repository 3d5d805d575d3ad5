import io
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pyspark import SparkContext

from sparknet.errors import ShardError
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.layouts.plan import Part, Sample
from sparknet.loaders.layouts.tars import divide, first_member, read_tar
from sparknet.loaders.samples import _read_parts
from sparknet.loaders.source import File
from sparknet.loaders.tar import Member, scan
from sparknet.session import readable_errors
from tests.sets import tar_bytes

MIB = 1024 * 1024


def write(folder: Path, name: str, members: dict[str, bytes]) -> File:
    path = folder / name
    path.write_bytes(tar_bytes(members))
    return File(str(path), path.stat().st_size)


def big_members(seed: int, total: int) -> dict[str, bytes]:
    """Members of odd sizes, small and large, `total` bytes or a little more."""
    rng = np.random.default_rng(seed)
    members: dict[str, bytes] = {}
    size = 0
    while size < total:
        length = int(rng.choice([0, 1, 511, 512, 40_000, 130_001, 1_200_000], p=[0.1, 0.1, 0.1, 0.1, 0.3, 0.2, 0.1]))
        members[f"{seed}_{len(members)}.JPEG"] = rng.bytes(length)
        size += length
    return members


def read_all(parts: tuple[Part, ...]) -> list[Sample]:
    return [sample for part in parts for sample in read_tar(part)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[File]:
    folder = tmp_path_factory.mktemp("two")
    return [write(folder, f"{seed}.tar", big_members(seed, 6 * MIB)) for seed in (1, 2)]


def test_parts_give_all_members_once_and_in_order(two: list[File]) -> None:
    parts = divide(two)
    assert len(parts) >= 8
    assert [(sample.key, sample.data) for sample in read_all(parts)] == [
        member for seed in (1, 2) for member in big_members(seed, 6 * MIB).items()
    ]
    for sample in read_all(parts):
        with Path(sample.url).open("rb") as file:
            file.seek(sample.offset)
            assert file.read(len(sample.data)) == sample.data


def test_parts_cover_the_files_without_gap_or_overlap(two: list[File]) -> None:
    parts = divide(two)
    for file in two:
        own = [part for part in parts if part.url == file.url]
        ends = [part.start + part.length for part in own]
        assert [part.start for part in own] == [0, *ends[:-1]]
        assert ends[-1] == file.size
        assert [part.end_mark for part in own] == [False] * (len(own) - 1) + [True]
        assert all(part.length >= MIB for part in own[:-1])
        with Path(file.url).open("rb") as stream:
            assert sum(part.samples or 0 for part in own) == len(list(scan(stream, file.url)))


def test_parts_are_the_same_each_time(two: list[File]) -> None:
    assert divide(two) == divide(two)


def test_small_tars_are_one_part_each(tmp_path: Path) -> None:
    files = [write(tmp_path, f"{i}.tar", {f"{i}_{j}": b"x" for j in range(i)}) for i in range(3)]
    assert divide(files) == tuple(Part(file.url, 0, file.size, samples=i) for i, file in enumerate(files))


def test_many_tars_are_a_part_each_and_not_looked_into(tmp_path: Path) -> None:
    files = [write(tmp_path, f"{i:02d}.tar", {f"{i}": b"x"}) for i in range(16)]
    Path(files[7].url).write_bytes(b"no tar")
    assert divide(files) == tuple(Part(file.url, 0, file.size) for file in files)
    assert [part.samples for part in divide(files[:7] + files[8:])] == [1] * 15


def test_a_shard_that_lost_members_since_it_was_listed_is_found(sc: SparkContext, tmp_path: Path) -> None:
    file = write(tmp_path, "x.tar", {str(i): bytes(300_000) for i in range(10)})
    parts = divide([file])
    assert [part.samples for part in parts] == [4, 4, 2]
    shorter = tar_bytes({str(i): bytes(300_000) for i in range(9)})
    Path(file.url).write_bytes(shorter + bytes(file.size - len(shorter)))
    # Counting is read_samples' part: the tar itself is whole.
    rdd = sc.parallelize(parts, 3).mapPartitions(partial(_read_parts, read=read_tar, labels=None))
    with pytest.raises(ShardError) as raised, readable_errors():
        rdd.count()
    assert str(raised.value) == f"{file.url}: 1 samples of a part of it, 2 when it was listed"


def test_a_shard_that_was_written_anew_is_found(tmp_path: Path) -> None:
    file = write(tmp_path, "x.tar", {str(i): bytes(300_000) for i in range(10)})
    parts = divide([file])
    Path(file.url).write_bytes(tar_bytes({str(i): b"y" * 250_000 for i in range(12)}))
    with pytest.raises(ShardError, match=f"^{file.url}: .* offset"):
        read_all(parts)


@pytest.mark.parametrize("cut", [700_000, 2_000_000, 2_500_000])
def test_a_cut_shard_is_found_when_it_is_divided(tmp_path: Path, cut: int) -> None:
    file = write(tmp_path, "x.tar", {str(i): bytes(300_000) for i in range(10)})
    Path(file.url).write_bytes(Path(file.url).read_bytes()[:cut])
    with pytest.raises(ShardError, match=f"^{file.url}: cut off at offset {cut}, within "):
        divide([file._replace(size=cut)])


def test_keys_lack_the_dot_of_tars_made_from_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path, "x.tar", {"./a.JPEG": b"1", "./b/c.JPEG": b"2", ".hidden": b"3"})
    part = Part(file.url, 0, file.size, prefix="n1/", label=5)
    assert [(sample.key, sample.label) for sample in read_tar(part)] == [
        ("n1/a.JPEG", 5), ("n1/b/c.JPEG", 5), ("n1/.hidden", 5),
    ]  # fmt: skip


def test_tars_within_a_flat_tar_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "x.tar", {"a.JPEG": b"1", "n1.tar": tar_bytes({"b": b"2"})})
    message = f"{file.url}: n1.tar at offset 1024 is a tar, not an image; name a tar of tars by itself"
    for act in (lambda: divide([file]), lambda: list(read_tar(Part(file.url, 0, file.size)))):
        with pytest.raises(ShardError) as raised:
            act()
        assert str(raised.value) == message


def test_the_first_member(tmp_path: Path) -> None:
    member = first_member(write(tmp_path, "x.tar", {"a": b"12", "b": b"3"}))
    assert member == Member("a", 512, 2, 0)
    assert first_member(write(tmp_path, "y.tar", {})) is None


def linked(names: list[str], size: int) -> bytes:
    """A tar of files, each followed by a hard link to the first; and of what macOS and folders add."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for i, name in enumerate(names):
            for kind, full in ((tarfile.DIRTYPE, "x"), (tarfile.REGTYPE, name), (tarfile.REGTYPE, f"x/._{name}")):
                info = tarfile.TarInfo(full)
                info.type, info.size = kind, size if full == name else 0
                tar.addfile(info, io.BytesIO(bytes([i + 1]) * size) if info.size else None)
            link = tarfile.TarInfo(f"link to the first {i}")
            link.type, link.linkname = tarfile.LNKTYPE, names[0]
            tar.addfile(link)
    return out.getvalue()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("size", [3, 500_000], ids=["one part", "a part each"])
def test_a_hard_link_is_what_it_stands_for(tmp_path: Path, size: int, nested: bool) -> None:
    inner = linked(["a", "b", "c"], size)
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes({"n00000001.tar": tar_bytes({"z": b"z"}), "n00000002.tar": inner}) if nested else inner)
    plan = plan_source(str(path))
    assert len(plan.parts) == (2 if nested or size > 3 else 1)
    samples = [sample for part in plan.parts for sample in plan.read(part)][nested:]
    assert [sample.key.removeprefix("n00000002/") for sample in samples] == [
        "a", "link to the first 0", "b", "link to the first 1", "c", "link to the first 2",
    ]  # fmt: skip
    assert [sample.data[:1] for sample in samples] == [b"\1", b"\1", b"\2", b"\1", b"\3", b"\1"]
    for sample in samples:
        assert len(sample.data) == size
        assert path.read_bytes()[sample.offset :][:size] == sample.data


def test_a_hard_link_to_nothing_has_no_bytes(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.LNKTYPE, "gone"
        tar.addfile(link)
    file = File(str(tmp_path / "x.tar"), len(out.getvalue()))
    Path(file.url).write_bytes(out.getvalue())
    assert [(sample.key, sample.data) for part in divide([file]) for sample in read_tar(part)] == [("link", b"")]
    twice = write(tmp_path, "y.tar", {})
    Path(twice.url).write_bytes(tar_bytes({"a": b"1"}, end_mark=False) + tar_bytes({"a": b"2"}))
    [part] = divide([twice._replace(size=Path(twice.url).stat().st_size)])
    # Members of the same name are samples each: whoever unpacks them would see the last alone.
    assert [(sample.key, sample.data) for sample in read_tar(part)] == [("a", b"1"), ("a", b"2")]
