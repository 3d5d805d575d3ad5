import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparknet.errors import ShardError, SourceError
from sparknet.loaders import source
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.layouts.plan import Part, Plan, Sample
from sparknet.loaders.layouts.tars import read_tar
from sparknet.loaders.source import read_range
from tests.sets import SYNSETS, TinySet, tar_bytes

A, B = "n01440764", "n02119789"
IMAGES = {A: {f"{A}_{i}.JPEG": bytes([i]) * 700 for i in range(3)}, B: {f"{B}_{i}.JPEG": b"b" * i for i in range(5)}}
INNER = {f"{name}.tar": tar_bytes(images) for name, images in IMAGES.items()}
# Without padding to 10 KiB, so that every byte but those of the end-of-archive marks counts.
TIGHT = {f"{name}.tar": tar_bytes(images, end_mark=False) + bytes(1024) for name, images in IMAGES.items()}


def write(folder: Path, data: bytes) -> str:
    path = folder / "train.tar"
    path.write_bytes(data)
    return str(path)


def read(plan: Plan[Part]) -> list[Sample]:
    return [sample for part in plan.parts for sample in plan.read(part)]


def test_the_plan_of_a_nested_tar(tiny: TinySet) -> None:
    plan = plan_source(str(tiny.train))
    assert plan.layout == "ilsvrc"
    assert plan.class_names == SYNSETS
    with tarfile.open(tiny.train) as tar:
        assert plan.parts == tuple(
            Part(str(tiny.train), info.offset_data, info.size, None, f"{synset}/", label, tar=info.offset_data)
            for label, synset in enumerate(SYNSETS)
            for info in [tar.getmember(f"{synset}.tar")]
        )


def test_the_class_follows_from_sorting_not_from_place(tmp_path: Path) -> None:
    for names in ((A, B), (B, A)):
        plan = plan_source(write(tmp_path, tar_bytes({f"train/{name}.tar": INNER[f"{name}.tar"] for name in names})))
        assert plan.class_names == (A, B)
        assert {(sample.key, sample.label, sample.data) for sample in read(plan)} == {
            (f"{name}/{key}", (A, B).index(name), data) for name in names for key, data in IMAGES[name].items()
        }


def test_a_folder_of_class_tars_is_the_same_set(tmp_path: Path) -> None:
    nested = read(plan_source(write(tmp_path, tar_bytes(INNER))))
    folder = tmp_path / "classes"
    folder.mkdir()
    for name, data in INNER.items():
        (folder / name).write_bytes(data)
    plan = plan_source(str(folder))
    assert plan.class_names == (A, B)
    apart = read(plan)
    assert [sample[:3] for sample in apart] == [sample[:3] for sample in nested]
    assert [sample.url for sample in apart] == [f"{folder}/{A}.tar"] * 3 + [f"{folder}/{B}.tar"] * 5
    for sample in apart:
        assert read_range(sample.url, sample.offset, len(sample.data)) == sample.data


def test_two_class_tars_of_one_class_are_refused_not_one_of_them_lost(tmp_path: Path) -> None:
    for folder in ("train", "more"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{A}.tar").write_bytes(INNER[f"{A}.tar"])
    with pytest.raises(SourceError) as raised:
        plan_source(str(tmp_path))
    assert str(raised.value) == (
        f"{tmp_path}/train/{A}.tar: the class of {tmp_path}/more/{A}.tar again; name a folder with one tar a class"
    )


def test_each_inner_tar_is_one_request_and_nothing_is_unpacked(
    tiny: TinySet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, int, int]] = []

    def noted(url: str, start: int, length: int) -> bytes:
        requests.append((url, start, length))
        return read_range(url, start, length)

    plan = plan_source(str(tiny.train))
    monkeypatch.setattr(source, "read_range", noted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    beside = sorted(tiny.train.parent.iterdir())
    for part in plan.parts:
        requests.clear()
        keys = [sample.key for sample in read_tar(part)]
        assert keys == [key for key, (_, label) in tiny.train_images.items() if label == part.label]
        assert requests == [(part.url, part.start, part.length)]
    assert [*tmp_path.iterdir()] == []
    assert sorted(tiny.train.parent.iterdir()) == beside


def test_planning_reads_headers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A train tar has 140 GB; the driver must not go through them."""
    inner = tar_bytes({"big.JPEG": bytes(3_000_000)})
    url = write(tmp_path, tar_bytes({f"n{i:08d}.tar": inner for i in range(4)}))
    seen = 0
    plain_open = LocalFileSystem.open

    class Counting(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal seen
            data = super().read(size)
            seen += len(data)
            return data

    def counting(fs: LocalFileSystem, path: str, *args: object, **kwargs: object) -> Counting:
        plain_open(fs, path, *args, **kwargs).close()
        return Counting(io.FileIO(path))

    monkeypatch.setattr(LocalFileSystem, "open", counting)
    assert len(plan_source(url).parts) == 4
    assert 0 < seen < 50_000


def outer_with(inner: dict[str, bytes]) -> bytes:
    return tar_bytes(inner, end_mark=False) + bytes(1024)


def offset_of(tar: bytes, name: str) -> int:
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return opened.getmember(name).offset_data


@pytest.mark.parametrize("cut", [0, 300, 512, 900, 1536, 1537, 2 * 1536, 3 * 1536, 3 * 1536 + 511])
def test_an_inner_tar_cut_off_inside_an_intact_outer_tar_is_named(tmp_path: Path, cut: int) -> None:
    """Also between two members, where tarfile sees nothing wrong."""
    tar = outer_with({f"{A}.tar": TIGHT[f"{A}.tar"][:cut], f"{B}.tar": TIGHT[f"{B}.tar"]})
    url = write(tmp_path, tar)
    plan = plan_source(url)
    start = offset_of(tar, f"{A}.tar")
    with pytest.raises(ShardError) as raised:
        list(plan.read(plan.parts[0]))
    message = f"{url}: not a tar at offset {start}: " if cut < 512 else f"{url}: cut off at offset {start + cut}"
    assert str(raised.value).startswith(message)
    assert [sample.key for sample in plan.read(plan.parts[1])] == [f"{B}/{key}" for key in IMAGES[B]]


@pytest.mark.parametrize("size_lost", [1024, 1025, 2048])
def test_an_inner_tar_longer_than_its_header_says_is_named(tmp_path: Path, size_lost: int) -> None:
    """The bytes are all there, but the outer header cuts them: what follows is no header."""
    honest = TIGHT[f"{A}.tar"]
    tar = bytearray(outer_with({f"{A}.tar": honest, f"{B}.tar": TIGHT[f"{B}.tar"]}))
    info = tarfile.TarInfo(f"{A}.tar")
    info.size = len(honest) - size_lost
    tar[:512] = info.tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(ShardError, match=f"^{tmp_path}/train.tar: .*at offset "):
        read(plan_source(write(tmp_path, bytes(tar))))


@pytest.mark.parametrize("size_more", [1, 512, 1024, 4096, 10**9])
def test_an_inner_tar_shorter_than_its_header_says_is_named(tmp_path: Path, size_more: int) -> None:
    """The range then holds the head of what follows, or runs over the end of the file."""
    honest = TIGHT[f"{A}.tar"]
    tar = bytearray(outer_with({f"{A}.tar": honest, f"{B}.tar": TIGHT[f"{B}.tar"]}))
    info = tarfile.TarInfo(f"{A}.tar")
    info.size = len(honest) + size_more
    tar[:512] = info.tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(ShardError, match=f"^{tmp_path}/train.tar: .*at offset "):
        read(plan_source(write(tmp_path, bytes(tar))))


@pytest.mark.parametrize("where", ["between inner tars", "within the last", "before the mark"])
def test_an_outer_tar_cut_off_is_named(tmp_path: Path, where: str) -> None:
    tar = tar_bytes(TIGHT)
    last = offset_of(tar, f"{B}.tar")
    cut = {
        "between inner tars": last - 512,
        "within the last": last + 1000,
        "before the mark": last + len(TIGHT[f"{B}.tar"]),
    }[where]
    url = write(tmp_path, tar[:cut])
    with pytest.raises(ShardError, match=f"^{url}: cut off at offset {cut}"):
        plan_source(url)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1))
def test_a_nested_tar_cut_anywhere_is_an_error_or_complete(tmp_path: Path, cut: float) -> None:
    tar = outer_with(TIGHT)
    length = round(cut * len(tar))
    url = write(tmp_path, tar[:length])
    if length >= len(tar) - 512:
        assert len(read(plan_source(url))) == 8
    else:
        with pytest.raises(ShardError, match=f"^{url}: "):
            read(plan_source(url))


def test_an_inner_tar_with_a_damaged_header_is_named_at_its_place_in_the_file(tmp_path: Path) -> None:
    tar = bytearray(tar_bytes(INNER))
    header = offset_of(bytes(tar), f"{A}.tar") + 1536
    tar[header + 10] ^= 1
    url = write(tmp_path, bytes(tar))
    with pytest.raises(ShardError, match=f"^{url}: damaged header at offset {header}; copy or fetch the file again$"):
        read(plan_source(url))


def test_an_inner_tar_with_a_hole_is_named(tmp_path: Path) -> None:
    tar = bytearray(tar_bytes(INNER))
    hole = offset_of(bytes(tar), f"{A}.tar") + 1536
    tar[hole : hole + 512] = bytes(512)
    url = write(tmp_path, bytes(tar))
    with pytest.raises(ShardError, match=f"^{url}: end-of-archive mark at offset {hole}, but the tar goes on"):
        read(plan_source(url))


def test_what_lies_beside_inner_tars_is_refused(tmp_path: Path) -> None:
    tar = tar_bytes({**INNER, "README.txt": b"hello"})
    header = offset_of(tar, "README.txt") - 512
    with pytest.raises(ShardError, match=rf"^{tmp_path}/train.tar: README.txt at offset {header} is not a tar"):
        plan_source(write(tmp_path, tar))


def test_an_inner_tar_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    tar = tar_bytes({f"a/{A}.tar": INNER[f"{A}.tar"], f"b/{A}.tar": INNER[f"{A}.tar"]})
    header = offset_of(tar, f"b/{A}.tar") - 512
    with pytest.raises(ShardError, match=rf"^{tmp_path}/train.tar: b/{A}.tar occurs twice, again at offset {header}$"):
        plan_source(write(tmp_path, tar))


def test_a_class_without_images_keeps_its_number(tmp_path: Path) -> None:
    plan = plan_source(write(tmp_path, tar_bytes({f"{A}.tar": tar_bytes({}), f"{B}.tar": INNER[f"{B}.tar"]})))
    assert plan.class_names == (A, B)
    assert {sample.label for sample in read(plan)} == {1}


def test_all_of_cifar10(cifar10: Path) -> None:
    plan = plan_source(str(cifar10 / "ILSVRC2012_img_train.tar"))
    assert list(plan.class_names) == sorted(
        line.split()[0] for line in (cifar10 / "synsets.txt").read_text().splitlines()
    )
    samples = read(plan)
    assert len({sample.key for sample in samples}) == len(samples) == 50_000
    assert [sum(sample.label == i for sample in samples) for i in range(10)] == [5000] * 10
    assert all(sample.key.split("/")[0] == plan.class_names[sample.label or 0] for sample in samples)
