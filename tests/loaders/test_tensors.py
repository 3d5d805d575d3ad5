"""Other tensors than images: files, faults, minibatches, and networks that learn from them."""

import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext
from torch import nn
from torch.utils.data import DataLoader

from sparknet import scratch
from sparknet.errors import ConfigError, SampleError, SessionError, ShardError
from sparknet.loaders import stored as stored_module
from sparknet.loaders import tensors as tensors_module
from sparknet.loaders.dataset import TensorMinibatchDataset, tensor_minibatch_rdd
from sparknet.loaders.orders import Order, Tail, order_of
from sparknet.loaders.stored import open_stored
from sparknet.loaders.tensor_minibatch import TensorShare
from sparknet.loaders.tensors import TensorBlock, TensorBlocks, _write, cache_tensors
from sparknet.scratch import Room


def sample(i: int) -> dict[str, Any]:
    """Sample i: several tensors of several types; a byte among them, so that rows are padded."""
    rng = np.random.default_rng((7, i))
    return {
        "series": rng.normal(size=(5, 3)).astype(np.float32),
        "flag": np.uint8(i % 251),
        "tokens": rng.integers(0, 99, 4),
        "number": i,
        "weight": rng.random(),
    }


def numbered(part: tuple[int, int]) -> Iterator[dict[str, Any]]:
    return (sample(i) for i in range(*part))


PARTS = [(0, 500), (500, 500), (500, 1201), (1201, 1202)]


@pytest.fixture(scope="module")
def blocks(sc: SparkContext) -> Iterator[TensorBlocks]:
    made = cache_tensors(sc, PARTS, numbered)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files go that this process writes, as an executor."""
    monkeypatch.setattr(scratch, "local_roots", lambda: [tmp_path])
    monkeypatch.setattr(tensors_module, "local_path", lambda name: tmp_path / name)
    monkeypatch.setattr(stored_module, "local_path", lambda name: tmp_path / name)
    monkeypatch.setattr(stored_module, "_mapped", {})
    return tmp_path


def built(read: Callable[[Any], Any], part: Any, room: Room | None = None) -> TensorBlock:
    [block] = _write(0, [part], tensors_module._pickled(read), "set", room or Room())
    return block


def kept(batches: Iterator[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    return [{name: array.copy() for name, array in batch.items()} for batch in batches]


def check(batch: dict[str, np.ndarray]) -> list[int]:
    """Make sure that each row is a sample; give their numbers."""
    numbers: list[int] = batch["number"].tolist()
    for row, i in enumerate(numbers):
        for name, value in sample(i).items():
            assert batch[name].dtype == np.asarray(value).dtype
            assert np.array_equal(batch[name][row], value)
    return numbers


def test_every_sample_comes_out_as_it_went_in(blocks: TensorBlocks) -> None:
    assert blocks.counts == (500, 0, 701, 1)
    assert len(blocks) == 1202
    assert set(blocks.dtype.names or ()) == set(sample(0))
    share = TensorShare(blocks.handles, 0, 0)
    [batch] = share.minibatches(0, 1, batch=1202)
    assert sorted(check(batch)) == [*range(1202)]


@pytest.mark.parametrize(
    ("order", "tail"),
    [("epoch", "carried"), ("epoch", "kept"), ("epoch", "dropped"), ("window", "carried"), ("replacement", "carried")],
)
def test_minibatches_follow_the_order_that_is_asked_for(blocks: TensorBlocks, order: Order, tail: Tail) -> None:
    share = TensorShare(blocks.handles, 3, 1)
    found = kept(share.minibatches(3, 4, batch=500, order=order, tail=tail))
    indices = order_of(order, tail, samples=1202, batch=500, tau=4, key=(3, 1))
    # The blocks lie end to end: the index in the share is the number.
    assert [check(batch) for batch in found] == [indices(i).tolist() for i in range(3, 7)]


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_stay_as_they_are(blocks: TensorBlocks, keep: int) -> None:
    share = TensorShare(blocks.handles, 0, 0)
    expected = kept(share.minibatches(0, 7, batch=8))
    found = list(share.minibatches(0, 7, batch=8, kept=keep))
    alike = [np.array_equal(one["series"], other["series"]) for one, other in zip(found, expected, strict=True)]
    assert alike == [False] * (7 - keep) + [True] * keep


def test_an_rdd_gives_each_worker_s_minibatches(blocks: TensorBlocks) -> None:
    found = tensor_minibatch_rdd(blocks, 2, 1, 3, batch=50, seed=4).glom().collect()
    for worker, batches in enumerate(found):
        expected = kept(TensorShare(blocks.handles[worker::2], 4, worker).minibatches(1, 3, batch=50))
        for one, other in zip(batches, expected, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in other)
    with pytest.raises(ConfigError, match=r"tensors: 4 workers, but only 3 would get any of the 1202 samples"):
        tensor_minibatch_rdd(blocks, 4, 0, 1, batch=5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_gives_each_sample_once_an_epoch(blocks: TensorBlocks, workers: int) -> None:
    dataset = TensorMinibatchDataset(blocks.handles, batch=100)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        found = list(DataLoader(dataset, batch_size=None, num_workers=workers))
        epochs.append([number for batch in found for number in check({k: v.numpy() for k, v in batch.items()})])
        assert sorted(epochs[-1]) == [*range(1202)]
    assert epochs[0] != epochs[1]
    with pytest.raises(ConfigError, match="a dataset needs a sample"):
        TensorMinibatchDataset(blocks.handles[1:2], batch=1)


def test_the_same_set_again_is_the_same_bytes(sc: SparkContext, blocks: TensorBlocks) -> None:
    again = cache_tensors(sc, PARTS, numbered)
    assert [block.checksums.tolist() for block in again.handles] == [
        block.checksums.tolist() for block in blocks.handles
    ]
    names = [block.path for block in again.handles]
    again.close()
    assert not any(Path(name).exists() for name in names)
    assert all(Path(block.path).exists() for block in blocks.handles)


@pytest.mark.parametrize("harm", ["deleted", "damaged", "cut"])
def test_a_file_that_is_gone_or_damaged_is_made_again(folder: Path, harm: str) -> None:
    block = built(numbered, (0, 1300))
    path, whole = Path(block.path), Path(block.path).read_bytes()
    assert len(block.checksums) > 1
    if harm == "deleted":
        path.unlink()
    elif harm == "damaged":
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    else:
        path.write_bytes(whole[:-1])
    [batch] = TensorShare([block], 0, 0).minibatches(0, 1, batch=1300)
    assert sorted(check(batch)) == [*range(1300)]
    assert path.read_bytes() == whole
    assert [*folder.iterdir()] == [path]


@pytest.mark.parametrize("change", [0, 1299], ids=["first", "last"])
def test_a_part_that_has_changed_is_not_taken_for_what_it_was(
    folder: Path, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = built(numbered, (0, 1300))
    undisturbed = sample
    monkeypatch.setitem(globals(), "sample", lambda i: undisturbed(i) | ({"weight": 2.0} if i == change else {}))
    Path(block.path).unlink()
    with pytest.raises(ShardError, match=r"^\(0, 1300\): samples \d+ to \d+ is not what it was when it was cached"):
        open_stored(block)
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize("stop", [1200, 1400])
def test_nor_one_that_is_shorter_or_longer(folder: Path, stop: int) -> None:
    ends = [1300]
    block = built(lambda _: numbered((0, ends[0])), "part")
    shorter = tensors_module._pickled(lambda _: numbered((0, stop)))
    object.__setattr__(block, "read", shorter)
    Path(block.path).unlink()
    with pytest.raises(ShardError, match=r"^part: samples \d+ to 1299 is not what it was"):
        open_stored(block)


def fails(_: object) -> Iterator[dict[str, Any]]:
    yield {"x": 1}
    raise OSError("the disk\nis gone")


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another shape": (
        lambda _: [{"x": np.zeros(3, np.float32)}, {"x": np.zeros(4, np.float32)}],
        "p: sample 1 has x: float32 [4], but sample 0 x: float32 [3]",
    ),
    "another dtype": (lambda _: [{"x": 1}, {"x": 1.0}], "p: sample 1 has x: float64, but sample 0 x: int64"),
    "other names": (lambda _: [{"x": 1}, {"y": 1}], "p: sample 1 has y: int64, but sample 0 x: int64"),
    "one more": (lambda _: [{"x": 1}, {"x": 1, "y": 2}], "p: sample 1 has x: int64, y: int64, but sample 0 x: int64"),
    "text": (lambda _: [{"x": "abc"}], "p: sample 0 has x of dtype <U3; a tensor holds numbers"),
    "an object": (lambda _: [{"x": {}}], "p: sample 0 has x of dtype object; a tensor holds numbers"),
    "ragged lists": (
        lambda _: [{"x": [[1], [1, 2]]}],
        "p: sample 0 has x of lists of several lengths; a tensor has one shape",
    ),
    "a tuple": (lambda _: [(1, 2)], "p: sample 0 is (1, 2); give tensors by name, such as {'x': array, 'y': 3}"),
    "a number for a name": (
        lambda _: [{1: 2}],
        "p: sample 0 is {1: 2}; give tensors by name, such as {'x': array, 'y': 3}",
    ),
    "no tensor": (lambda _: [{}], "p: sample 0 holds nothing"),
    "tensors of nothing": (lambda _: [{"x": np.zeros((3, 0))}], "p: sample 0 holds nothing"),
    "no list": (lambda _: None, "p: sample 0 cannot be read: TypeError: 'NoneType' object is not iterable"),
    "an error of its own": (fails, "p: sample 1 cannot be read: OSError: the disk is gone"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_sample_that_cannot_be_taken(folder: Path, name: str) -> None:
    read, message = MISTAKES[name]
    with pytest.raises(SampleError, match=f"^{re.escape(message)}$"):
        built(read, "p")
    assert [*folder.iterdir()] == []


def test_parts_that_differ(sc: SparkContext) -> None:
    parts: dict[str, list[dict[str, Any]]] = {"none": [], "a": [{"x": 1}], "b": [{"x": 1.0}]}
    with pytest.raises(SampleError, match=r"^b: its samples have x: float64, but those of a x: int64$"):
        cache_tensors(sc, ["none", "a", "b"], parts.__getitem__)
    assert sc.parallelize([0], 1).flatMap(lambda _: [*scratch._sizes("*.tensors.*")]).collect() == []


def test_tensors_in_another_order_are_the_same(sc: SparkContext) -> None:
    rows: dict[str, list[dict[str, Any]]] = {"a": [{"x": 1, "y": 2.0}, {"y": 4.0, "x": 3}], "b": [{"y": 6.0, "x": 5}]}
    blocks = cache_tensors(sc, ["a", "b"], rows.__getitem__)
    [batch] = TensorShare(blocks.handles, 0, 0).minibatches(0, 1, batch=3)
    assert sorted(zip(batch["x"].tolist(), batch["y"].tolist(), strict=True)) == [(1, 2.0), (3, 4.0), (5, 6.0)]
    blocks.close()


def test_an_error_in_a_task_is_one_line_and_leaves_no_file(sc: SparkContext) -> None:
    before = sc.parallelize([0], 1).flatMap(lambda _: [*scratch._sizes("*")]).collect()
    with pytest.raises(SampleError, match=r"^p: sample 1 cannot be read: OSError: the disk is gone$"):
        cache_tensors(sc, ["p"], fails)
    assert sc.parallelize([0], 1).flatMap(lambda _: [*scratch._sizes("*")]).collect() == before


@pytest.mark.parametrize(("parts", "message"), [([], "set: no part is named"), ([1, 2], "set: none of 2 parts has")])
def test_a_set_of_nothing(sc: SparkContext, parts: list[int], message: str) -> None:
    with pytest.raises(SampleError, match=f"^{message}"):
        cache_tensors(sc, parts, lambda _: [], source="set")


def test_a_limit_in_bytes(sc: SparkContext) -> None:
    with pytest.raises(ConfigError, match=r"^the cache limit must be above 0 bytes, got 0$"):
        cache_tensors(sc, PARTS, numbered, limit_bytes=0)
    with pytest.raises(ConfigError, match=r"another .*; raise --cache-limit-gb, or cache fewer samples$"):
        cache_tensors(sc, PARTS[-1:], numbered, limit_bytes=1)


def test_a_disk_without_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(SessionError, match=r"1.0 kB free, but this partition's tensors need another .* at least; make"):
        built(numbered, (0, 100), room=Room(what="tensors"))
    assert [*folder.iterdir()] == []


def test_a_reader_that_the_executors_cannot_load(folder: Path) -> None:
    with pytest.raises(SampleError, match=r"^the function that reads samples cannot be loaded on .*: ModuleNotFoundE"):
        [*_write(0, ["p"], b"cno_such_module\nread\n.", "set", Room())]


@given(st.data())
def test_any_shapes_and_dtypes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    dtypes = st.sampled_from(["?", "i1", "u2", "i8", "f2", "f4", "f8", "c8", ">i4", ">f8"])
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    fields = data.draw(st.dictionaries(st.text(min_size=1, max_size=3), st.tuples(dtypes, shapes), min_size=1))
    count = data.draw(st.integers(1, 20))
    if not any(np.prod(shape) for _, shape in fields.values()):
        return
    samples = [
        {name: np.random.default_rng(i).integers(0, 2, shape).astype(dtype) for name, (dtype, shape) in fields.items()}
        for i in range(count)
    ]
    where = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch, "local_roots", lambda: [where])
        patch.setattr(tensors_module, "local_path", lambda name: where / name)
        patch.setattr(stored_module, "_mapped", {})
        block = built(lambda _: samples, "p")
        [batch] = TensorShare([block], 0, 0).minibatches(0, 1, batch=count)
    order = order_of("epoch", "carried", samples=count, batch=count, tau=1, key=(0, 0))(0)
    assert batch.keys() == fields.keys()
    for name, (dtype, _) in fields.items():
        expected = np.array([samples[i][name] for i in order])
        assert np.array_equal(batch[name], expected)
        assert batch[name].dtype == np.dtype(dtype).newbyteorder("=")
        assert batch[name].flags.c_contiguous


def tabular(part: int) -> Iterator[dict[str, Any]]:
    """Rows of eight columns; the class is the sign of a product, which no linear model finds."""
    rng = np.random.default_rng(part)
    for row in rng.normal(size=(200, 8)).astype(np.float32):
        yield {"columns": row, "label": int(row[0] * row[1] > 0)}


def test_a_perceptron_learns_from_tabular_data(sc: SparkContext) -> None:
    blocks = cache_tensors(sc, range(8), tabular)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    dataset = TensorMinibatchDataset(blocks.handles, batch=50)
    for epoch in range(20):
        dataset.set_epoch(epoch)
        for batch in DataLoader(dataset, batch_size=None):
            loss = nn.functional.cross_entropy(network(batch["columns"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    unseen = [*tabular(99)]
    scores = network(torch.from_numpy(np.array([row["columns"] for row in unseen])))
    right = scores.argmax(1) == torch.tensor([row["label"] for row in unseen])
    assert right.float().mean() > 0.85  # chance is a half
    blocks.close()


class Parity(nn.Module):
    """Reads tokens and a length, two inputs; says which of two tokens was the first of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.reader, self.last = nn.Embedding(6, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        states, _ = self.reader(self.embed(tokens))
        scores: torch.Tensor = self.last(states[torch.arange(len(length)), length - 1])
        return scores


def sequences(part: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(part)
    for _ in range(200):
        tokens = rng.integers(2, 6, 9)
        tokens[0] = rng.integers(0, 2)
        yield {"tokens": tokens, "length": np.int64(rng.integers(4, 10)), "label": tokens[0]}


def test_a_recurrent_network_learns_on_two_workers_that_are_averaged(sc: SparkContext) -> None:
    """Rounds as SparkNet's own, of minibatches that are drawn on the executors."""
    blocks = cache_tensors(sc, range(4), sequences)
    torch.manual_seed(0)
    network, tau = Parity(), 20

    def train(batches: Iterator[dict[str, np.ndarray]], weights: dict[str, torch.Tensor]) -> Iterator[Any]:
        torch.set_num_threads(1)
        worker = Parity()
        worker.load_state_dict(weights)
        optimizer = torch.optim.SGD(worker.parameters(), lr=0.5, momentum=0.9)
        for batch in batches:
            tokens, length, label = (torch.from_numpy(batch[name]) for name in ("tokens", "length", "label"))
            loss = nn.functional.cross_entropy(worker(tokens, length), label)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        yield {name: tensor.numpy() for name, tensor in worker.state_dict().items()}

    for number in range(6):
        weights = network.state_dict()
        drawn = tensor_minibatch_rdd(blocks, 2, number * tau, tau, batch=20)
        both = drawn.mapPartitions(partial(train, weights=weights)).collect()
        network.load_state_dict({name: torch.from_numpy(sum(one[name] for one in both) / 2) for name in weights})
    unseen = [*sequences(99)]
    tokens, length, label = (
        torch.from_numpy(np.array([row[name] for row in unseen])) for name in ("tokens", "length", "label")
    )
    assert (network(tokens, length).argmax(1) == label).float().mean() > 0.95  # chance is a half
    blocks.close()
