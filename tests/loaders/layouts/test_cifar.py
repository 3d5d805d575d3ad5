import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.decode import decode
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.layouts.cifar import unpickle
from tests.loaders.layouts.test_folder import read

NAMES = ["aeroplane", "car", "bird", "cat"]


def pixels(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), np.uint8)


def labels(seed: int, n: int) -> list[int]:
    return [(seed + i) % len(NAMES) for i in range(n)]


BATCHES = {"data_batch_1": (1, 4), "data_batch_2": (2, 3), "test_batch": (9, 2)}


def write_binary(folder: Path, hundred: bool = False) -> str:
    folder.mkdir(exist_ok=True)
    for name, (seed, n) in BATCHES.items():
        if hundred:
            name = {"data_batch_1": "train", "test_batch": "test"}.get(name, "")
        if name:
            coarse = [bytes([7])] * n if hundred else [b""] * n
            records = zip(coarse, labels(seed, n), pixels(seed, n), strict=True)
            (folder / f"{name}.bin").write_bytes(b"".join(c + bytes([f]) + p.tobytes() for c, f, p in records))
    (folder / ("fine_label_names.txt" if hundred else "batches.meta.txt")).write_text("\n".join(NAMES) + "\n\n")
    return str(folder)


def write_pickled(folder: Path, hundred: bool = False) -> str:
    folder.mkdir(exist_ok=True)
    key = b"fine_labels" if hundred else b"labels"
    for name, (seed, n) in BATCHES.items():
        if hundred:
            name = {"data_batch_1": "train", "test_batch": "test"}.get(name, "")
        if name:
            batch = {b"data": pixels(seed, n).reshape(n, -1), key: labels(seed, n), b"batch_label": b"a batch"}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {b"fine_label_names" if hundred else b"label_names": [name.encode() for name in NAMES]}
    (folder / ("meta" if hundred else "batches.meta")).write_bytes(pickle.dumps(meta, protocol=2))
    return str(folder)


WRITERS = {"binary": (write_binary, ".bin"), "pickled": (write_pickled, "")}


@pytest.mark.parametrize("kind", WRITERS)
def test_the_images_of_a_set(tmp_path: Path, kind: str) -> None:
    write, end = WRITERS[kind]
    plan = plan_source(f"{write(tmp_path)}/data_batch_{{1,2}}{end}")
    assert (plan.layout, plan.class_names) == ("cifar", tuple(NAMES))
    samples = read(plan)
    assert [sample.key for sample in samples] == [
        f"data_batch_{b}/{i:05d}" for b, n in ((1, 4), (2, 3)) for i in range(n)
    ]
    assert [sample.label for sample in samples] == labels(1, 4) + labels(2, 3)
    expected = np.concatenate([pixels(1, 4), pixels(2, 3)]).transpose(0, 2, 3, 1)
    assert np.array_equal([decode(sample.data) for sample in samples], expected)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(("name", "seed", "n"), [("train", 1, 4), ("test", 9, 2)])
def test_of_cifar_100_the_fine_classes(tmp_path: Path, kind: str, name: str, seed: int, n: int) -> None:
    write, end = WRITERS[kind]
    plan = plan_source(f"{write(tmp_path, hundred=True)}/{name}{end}")
    assert plan.class_names == tuple(NAMES)
    samples = read(plan)
    assert [sample.label for sample in samples] == labels(seed, n)
    assert np.array_equal([decode(sample.data) for sample in samples], pixels(seed, n).transpose(0, 2, 3, 1))


@pytest.mark.parametrize("kind", WRITERS)
def test_images_are_read_again_by_their_places(tmp_path: Path, kind: str) -> None:
    write, end = WRITERS[kind]
    plan = plan_source(f"{write(tmp_path)}/data_batch_1{end}")
    samples = [read(plan)[i] for i in (0, 2, 3)]
    [url] = {sample.url for sample in samples}
    found = plan.again(url, [(sample.offset, len(sample.data)) for sample in samples])
    assert [*found] == [sample.data for sample in samples]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("hundred", "several", "test"), [(False, "data_batch_{1..5}", "test_batch"), (True, "train", "test")]
)
def test_a_folder_holds_two_sets(tmp_path: Path, kind: str, hundred: bool, several: str, test: str) -> None:
    write, end = WRITERS[kind]
    url = write(tmp_path, hundred)
    message = re.escape(f"{url}: holds two sets; name one: {url}/{several}{end} or {url}/{test}{end}")
    with pytest.raises(SourceError, match=f"^{message}$"):
        plan_source(url)


@pytest.mark.parametrize("size", [0, 3072, 2 * 3073 - 1])
def test_a_binary_batch_that_was_cut_is_named(tmp_path: Path, size: int) -> None:
    write_binary(tmp_path)
    path = tmp_path / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(
        ShardError, match=rf"^{path}: {size} bytes are no whole number of images of 3073; copy or fetch"
    ):
        plan_source(str(path))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('was run')",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({b"data": Evil()}), "not a pickled batch: it asks for builtins.exec, which no batch needs"),
        (
            pickle.dumps({b"data": Path("x")}),
            "not a pickled batch: it asks for pathlib.PosixPath, which no batch needs",
        ),
        (pickle.dumps([1]), "not a pickled batch, but of type list"),
        (b"404: Not Found", "not a pickled batch: "),
        (b"", "not a pickled batch: Ran out of input"),
        (pickle.dumps({b"labels": [1]}), "holds no images of 3 x 32 x 32 bytes"),
        (pickle.dumps({b"data": pixels(0, 2).reshape(2, -1), b"labels": [1]}), "2 images have not as many labels"),
        (pickle.dumps({b"data": pixels(0, 2), b"labels": [1, 1]}), "holds no images of 3 x 32 x 32 bytes"),
    ],
)
def test_a_pickle_makes_nothing_but_a_batch(tmp_path: Path, data: bytes, message: str) -> None:
    write_pickled(tmp_path)
    path = tmp_path / "test_batch"
    path.write_bytes(data)
    with pytest.raises(ShardError, match=rf"^{path}: {re.escape(message)}"):
        read(plan_source(str(path)))


def test_a_whole_pickle_is_what_pickle_makes_of_it(tmp_path: Path) -> None:
    write_pickled(tmp_path)
    path = tmp_path / "test_batch"
    ours, theirs = unpickle(str(path)), pickle.loads(path.read_bytes(), encoding="bytes")
    assert ours.keys() == theirs.keys()
    assert np.array_equal(ours[b"data"], theirs[b"data"])
    assert ours[b"labels"] == theirs[b"labels"]
