import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from sparknet.errors import RunError
from sparknet.loaders.samples import BadSample
from sparknet.train import checkpoint
from sparknet.train.checkpoint import METRICS, Checkpoint, Settings
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.evaluate import Scores
from sparknet.train.models import build
from tests.train.serial import fresh

CONFIG = TrainConfig(
    net="tests.train.networks:batchnorm",
    crop=12,
    seed=2**63,
    momentum_mode="averaged",
    scale=1 / 3,
    solver=SolverConfig(policy="multistep", base_lr=1e-7, step_values=(10, 20)),
)


NAMES = ("cat", "dog, hund", "überbus")
ORIGIN = {"source": "/a b/ü.tar", "layout": None, "val": "s3://bucket/val.tar"}
SCORES = Scores(samples=31, correct=7, correct5=30, loss=1 / 3)


def settings_of(config: TrainConfig = CONFIG) -> Settings:
    return Settings(config=config, side=16, class_names=NAMES, counts=(3, 0, 2**40), origin=ORIGIN)


def mean_of(config: TrainConfig = CONFIG) -> np.ndarray | None:
    rng = np.random.default_rng(1)
    return rng.uniform(0, 255, (16, 16, 3)).astype(np.float32) if config.mean == "image" else None


def checkpoint_of(
    config: TrainConfig = CONFIG, rounds: int = 4, workers: int = 1, scores: Scores | None = SCORES
) -> Checkpoint:
    """Weights and momentum of noise that follows from the round."""
    net, rng = fresh(config), np.random.default_rng(rounds)
    weights, momentum = net.get_weights().copy(), net.get_momentum()
    weights.flat[:] = rng.normal(size=len(weights.flat))
    return Checkpoint(
        rounds=rounds,
        images=10 * rounds,
        seconds=rounds / 3,
        weights=weights,
        momentum=tuple(rng.normal(size=len(momentum)).astype(momentum.dtype) for _ in range(workers)),
        scores=scores,
    )


def write(
    out: Path, config: TrainConfig = CONFIG, bad: Iterable[BadSample] = (), rounds: Iterable[int] = (4,), keep: int = 9
) -> None:
    """Write a run with checkpoints after these rounds."""
    checkpoint.begin(settings_of(config), mean_of(config), bad, out)
    for number in rounds:
        checkpoint.save(checkpoint_of(config, number), out, keep)


def bits(state: Checkpoint | None) -> tuple[object, ...]:
    assert state is not None
    weights = (list(state.weights), state.weights.shapes, state.weights.flat.dtype, state.weights.flat.tobytes())
    momentum = [(array.dtype, array.shape, array.tobytes()) for array in state.momentum]
    return state.rounds, state.images, state.seconds, *weights, momentum, state.scores


def folder_of(out: Path, rounds: int) -> Path:
    return out / "checkpoints" / f"round-{rounds:08d}"


def halves(out: Path) -> list[Path]:
    """What was not written to its end."""
    return list(out.rglob("*.part"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "deep" / "run"
    write(folder)
    return folder


CONFIGS = {
    "batchnorm": CONFIG,
    "no mean": replace(CONFIG, mean="none"),
    "float64": replace(CONFIG, net="tests.train.networks:Wide"),
    "tied": replace(CONFIG, net="tests.train.networks:Tied"),
    "defaults": TrainConfig(net="lenet", crop=28),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_a_run_comes_back_to_the_bit(config: TrainConfig, tmp_path: Path) -> None:
    write(tmp_path / "run", config)
    again, state, mean = checkpoint.load(tmp_path / "run"), checkpoint_of(config), mean_of(config)
    assert again.settings == settings_of(config)
    assert checkpoint.load_settings(tmp_path / "run") == settings_of(config)
    assert list(again.weights) == list(state.weights)
    assert again.weights.shapes == state.weights.shapes
    assert again.weights.flat.dtype == state.weights.flat.dtype
    assert again.weights.flat.tobytes() == state.weights.flat.tobytes()
    if mean is None:
        assert again.mean is None
    else:
        assert again.mean is not None
        assert again.mean.tobytes() == mean.tobytes()
    assert hash(again.settings.config) == hash(config)


@pytest.mark.parametrize("workers", [0, 1, 3, 11])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_a_checkpoint_comes_back_to_the_bit(config: TrainConfig, workers: int, tmp_path: Path) -> None:
    write(tmp_path, config, rounds=())
    state = checkpoint_of(config, 12, workers, SCORES if workers else None)
    checkpoint.save(state, tmp_path, keep=1)
    found, damaged = checkpoint.newest(tmp_path)
    assert damaged == []
    assert bits(found) == bits(state)
    assert len(state.momentum) == workers
    expected = {"state.json", "weights.safetensors"} | ({"momentum.safetensors"} if workers else set())
    assert {path.name for path in folder_of(tmp_path, 12).iterdir()} == expected


def test_weights_keep_their_order_although_safetensors_sorts(saved: Path) -> None:
    names = list(checkpoint.load(saved).weights)
    assert names == list(fresh(CONFIG).get_weights())
    assert names != sorted(names)
    net = fresh(replace(CONFIG, seed=1))
    net.set_weights(checkpoint.load(saved).weights.flat)
    for name, tensor in net.module.state_dict().items():
        if tensor.is_floating_point():
            np.testing.assert_array_equal(tensor.numpy(), checkpoint_of().weights[name])


@pytest.mark.parametrize("net", ["tests.train.networks:batchnorm", "tests.train.networks:Wide", "cifar10_quick"])
def test_plain_pytorch_loads_the_weights(net: str, tmp_path: Path) -> None:
    config = replace(CONFIG, net=net)
    write(tmp_path, config)
    module = build(net, 3, 12, seed=5)
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "weights.safetensors"), strict=True)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            np.testing.assert_array_equal(tensor.numpy(), checkpoint_of(config).weights[name])


def test_safetensors_own_loader_takes_tied_weights(tmp_path: Path) -> None:
    config = replace(CONFIG, net="tests.train.networks:Tied")
    write(tmp_path, config)
    module = build("tests.train.networks:Tied", 3, 12, seed=5)
    safetensors.torch.load_model(module, tmp_path / "weights.safetensors", strict=True)
    weights = checkpoint_of(config).weights
    np.testing.assert_array_equal(module.state_dict()["second.weight"].numpy(), weights["first.weight"])


def test_saving_again_replaces(saved: Path) -> None:
    state = checkpoint_of(rounds=5)
    state.weights.flat[:] = 7
    checkpoint.save(state, saved, keep=1)
    assert np.unique(checkpoint.load(saved).weights.flat).tolist() == [7]
    assert {path.name for path in saved.iterdir()} == {
        "bad_samples.jsonl",
        "checkpoints",
        "config.json",
        "mean.safetensors",
        "weights.safetensors",
    }


@pytest.mark.parametrize(("keep", "left"), [(1, [8]), (2, [6, 8]), (3, [4, 6, 8]), (9, [2, 4, 6, 8])])
def test_the_newest_are_kept(keep: int, left: list[int], tmp_path: Path) -> None:
    write(tmp_path, rounds=(2, 4, 6, 8), keep=keep)
    assert sorted((tmp_path / "checkpoints").iterdir()) == [folder_of(tmp_path, number) for number in left]
    for number in left:
        assert bits(checkpoint._read(folder_of(tmp_path, number))) == bits(checkpoint_of(rounds=number))
    assert checkpoint.load(tmp_path).weights.flat.tobytes() == checkpoint_of(rounds=8).weights.flat.tobytes()


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) == (None, [])
    write(tmp_path, rounds=())
    assert checkpoint.newest(tmp_path) == (None, [])
    with pytest.raises(RunError, match=rf"^{tmp_path}: no weights yet, .*; --resume {tmp_path}$"):
        checkpoint.load(tmp_path)


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1
    path.write_bytes(data)


def rewrite_state(folder: Path, **change: object) -> None:
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | change))


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


# What happens to a checkpoint, and what is said of it.
HURT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte of the weights": (
        lambda at: flip(at / "weights.safetensors", 0.9),
        r"weights.safetensors is not what was written \(its SHA-256 differs\)",
    ),
    "a byte of the momentum": (
        lambda at: flip(at / "momentum.safetensors", 0.9),
        r"momentum.safetensors is not what was written \(its SHA-256 differs\)",
    ),
    "the weights' header": (lambda at: flip(at / "weights.safetensors", 0), "weights.safetensors is not what was"),
    "cut weights": (lambda at: truncate(at / "weights.safetensors", 700), "weights.safetensors is not what was"),
    "weights less a byte": (
        lambda at: truncate(at / "weights.safetensors", (at / "weights.safetensors").stat().st_size - 1),
        "weights.safetensors is not what was written",
    ),
    "empty momentum": (lambda at: truncate(at / "momentum.safetensors", 0), "momentum.safetensors is not what was"),
    "no weights": (lambda at: (at / "weights.safetensors").unlink(), ".*No such file .*weights.safetensors"),
    "no momentum": (lambda at: (at / "momentum.safetensors").unlink(), ".*No such file .*momentum.safetensors"),
    "no state": (lambda at: (at / "state.json").unlink(), ".*No such file .*state.json"),
    "an empty state": (lambda at: (at / "state.json").write_text(""), "Expecting value"),
    "a state of garbage": (lambda at: (at / "state.json").write_bytes(b"\xff\x00"), ".*codec can't decode"),
    "a cut state": (lambda at: truncate(at / "state.json", 40), "Unterminated string"),
    "a state that is a list": (lambda at: (at / "state.json").write_text("[]"), ".*"),
    "a state of nothing": (lambda at: (at / "state.json").write_text("{}"), ".*sha256"),
    "another number of images": (
        lambda at: rewrite_state(at, images=9),
        r"state.json is not what was written \(its SHA-256 differs\)",
    ),
    "other scores": (lambda at: rewrite_state(at, scores=None), "state.json is not what was written"),
    "checksums of nothing": (lambda at: rewrite_state(at, sha256={}), ".*state.json"),
    "checksums of garbage": (lambda at: rewrite_state(at, sha256=7), ".*"),
    "empty": (empty, ".*No such file .*state.json"),
}


@pytest.mark.parametrize(("damage", "reason"), HURT.values(), ids=list(HURT))
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    damage: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    write(tmp_path, rounds=(2, 4, 6))
    damage(folder_of(tmp_path, 6))
    found, [line] = checkpoint.newest(tmp_path)
    assert bits(found) == bits(checkpoint_of(rounds=4))
    assert re.match(rf"{folder_of(tmp_path, 6)}: damaged: \w+: {reason}", line), line
    assert "\n" not in line

    flip(folder_of(tmp_path, 4) / "weights.safetensors", 0.99)
    found, damaged = checkpoint.newest(tmp_path)
    assert bits(found) == bits(checkpoint_of(rounds=2))
    assert [text.split(":")[0] for text in damaged] == [str(folder_of(tmp_path, number)) for number in (6, 4)]

    shutil.rmtree(folder_of(tmp_path, 2))
    found, damaged = checkpoint.newest(tmp_path)
    assert (found, len(damaged)) == (None, 2)

    # The run comes by these rounds again.
    for number in (4, 6):
        checkpoint.save(checkpoint_of(rounds=number), tmp_path, keep=2)
    found, damaged = checkpoint.newest(tmp_path)
    assert (bits(found), damaged) == (bits(checkpoint_of(rounds=6)), [])
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_no_byte_of_a_checkpoint_is_unguarded(tmp_path: Path) -> None:
    write(tmp_path, replace(CONFIG, net="tests.train.networks:Tied"))
    folder = folder_of(tmp_path, 4)
    whole = bits(checkpoint.newest(tmp_path)[0])
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            found, damaged = checkpoint.newest(tmp_path)
            # The last digit of a decimal fraction may not matter.
            assert (found is None and len(damaged) == 1) or bits(found) == whole, (path.name, place)
        path.write_bytes(data)


def test_half_a_checkpoint_is_ignored_and_removed(saved: Path) -> None:
    for number in (5, 6):
        half = saved / "checkpoints" / f"round-{number:08d}.part"
        shutil.copytree(folder_of(saved, 4), half)
    (half / "weights.safetensors.part").write_bytes(b"half")
    found, damaged = checkpoint.newest(saved)
    assert (bits(found), damaged) == (bits(checkpoint_of(rounds=4)), [])
    checkpoint.save(checkpoint_of(rounds=6), saved, keep=9)
    assert sorted((saved / "checkpoints").iterdir()) == [folder_of(saved, 4), folder_of(saved, 6)]
    assert len(list(folder_of(saved, 6).iterdir())) == 3


def test_weights_of_another_round_are_replaced(saved: Path) -> None:
    for content in (None, b"old"):
        (saved / "weights.safetensors").unlink()
        if content:
            (saved / "weights.safetensors").write_bytes(content)
        checkpoint.save_weights(checkpoint_of().weights, saved)
        weights = checkpoint.load(saved).weights
        assert (list(weights), weights.flat.tobytes()) == (
            list(checkpoint_of().weights),
            checkpoint_of().weights.flat.tobytes(),
        )
        assert (saved / "weights.safetensors").read_bytes() == (
            folder_of(saved, 4) / "weights.safetensors"
        ).read_bytes()


def test_bad_samples_are_named_a_line_each(tmp_path: Path) -> None:
    bad = [BadSample("a/1", "file:/x.tar", 512, "not an image"), BadSample("ü\n", "s3://b/y.tar", 0, "no label")]
    write(tmp_path / "run", bad=bad)
    lines = (tmp_path / "run" / "bad_samples.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"key": "a/1", "url": "file:/x.tar", "offset": 512, "reason": "not an image"},
        {"key": "ü\n", "url": "s3://b/y.tar", "offset": 0, "reason": "no label"},
    ]


@pytest.mark.parametrize("name", ["config.json", METRICS])
def test_a_used_folder_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("precious")
    message = re.escape(
        f"{tmp_path}: holds another run already; name a new folder, or go on with that one (--resume {tmp_path})"
    )
    for call in (checkpoint.refuse_used, lambda out: write(out, rounds=())):
        with pytest.raises(RunError, match=f"^{message}$"):
            call(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "precious")]


def test_a_folder_of_other_files_is_taken(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=rf"^{tmp_path}/file: is a file; name a new folder for the run$"):
        checkpoint.refuse_used(tmp_path / "file")
    with pytest.raises(
        RunError, match=rf"^{tmp_path}/file/run: {tmp_path}/file is a file; name another folder for the run$"
    ):
        write(tmp_path / "file" / "run", rounds=())


def test_nothing_is_left_of_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    write(tmp_path / "run", rounds=())
    before = sorted((tmp_path / "run").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(
            RunError, match=rf"^{tmp_path}/run/\S+: cannot be written: No space left on device; make room there$"
        ) as caught:
            checkpoint.save(checkpoint_of(), tmp_path / "run", keep=1)
        with pytest.raises(
            RunError,
            match=rf"^{tmp_path}/new/bad_samples.jsonl: cannot be written: No space left on device; make room there$",
        ):
            write(tmp_path / "new", rounds=())
    assert isinstance(caught.value.__cause__, OSError)
    assert sorted((tmp_path / "run").iterdir()) == sorted([*before, tmp_path / "run" / "checkpoints"])
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    assert not (tmp_path / "new").exists()


class Full:
    """A disk that is full from the n-th file on: half of that one is written."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, descriptor: int) -> None:
        self.left -= 1
        if self.left < 0:
            os.truncate(descriptor, os.fstat(descriptor).st_size // 2)
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("n", range(4), ids=["weights", "momentum", "state", "the run's weights"])
@pytest.mark.parametrize("rounds", [4, 6], ids=["the same round", "a later one"])
def test_a_failed_write_leaves_the_last_save(n: int, rounds: int, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replace(checkpoint_of(rounds=6), rounds=rounds)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Full(n))
        with pytest.raises(
            RunError, match=rf"^{saved}\S*: cannot be written: No space left on device; make room there$"
        ):
            checkpoint.save(changed, saved, keep=1)
    assert checkpoint.load(saved).weights.flat.tobytes() == checkpoint_of().weights.flat.tobytes()
    found, damaged = checkpoint.newest(saved)
    # By the time that the run's own weights are written, the checkpoint is whole.
    assert (bits(found), damaged) == (bits(changed if n == 3 else checkpoint_of()), [])
    assert halves(saved) == []


def test_what_is_begun_is_a_run_only_when_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", Full(n))
            with pytest.raises(RunError, match="No space left on device"):
                write(tmp_path, rounds=())
        with pytest.raises(RunError, match="holds no run"):
            checkpoint.load_settings(tmp_path)
        checkpoint.refuse_used(tmp_path)
        assert halves(tmp_path) == []
    write(tmp_path)
    assert checkpoint.load(tmp_path).settings == settings_of()


@pytest.mark.parametrize(
    ("content", "rounds", "left"),
    [
        ("1\n2\n3\n", 3, "1\n2\n3\n"),
        ("1\n2\n3\n", 2, "1\n2\n"),
        ("1\n2\n3\n", 0, ""),
        ('1\n{"rou', 1, "1\n"),
        ("", 0, ""),
        (None, 0, ""),
    ],
)
def test_metrics_of_rounds_to_come_are_taken_out(content: str | None, rounds: int, left: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / METRICS).write_text(content)
    checkpoint.trim_metrics(tmp_path, rounds)
    assert (tmp_path / METRICS).read_text() == left
    assert [path.name for path in tmp_path.iterdir()] == [METRICS]


def test_metrics_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=rf"^{tmp_path}/metrics.jsonl: cannot be written: No such file or directory$"):
        checkpoint.trim_metrics(tmp_path, 2)
    (tmp_path / METRICS).write_text("1\n")
    with pytest.raises(
        RunError, match=rf"^{tmp_path}/metrics.jsonl: 1 lines, the checkpoint is of round 2; a damaged run$"
    ):
        checkpoint.trim_metrics(tmp_path, 2)
    assert (tmp_path / METRICS).read_text() == "1\n"


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_folder_without_a_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for call in (checkpoint.load, checkpoint.load_settings):
        with pytest.raises(
            RunError,
            match=rf"^{tmp_path}/{name}: holds no run; name the folder that `sparknet train` was given as --out$",
        ):
            call(tmp_path / name)


def edit(folder: Path, change: dict[str, object], drop: tuple[str, ...] = ()) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in settings.items() if key not in drop}))


def train_settings(folder: Path) -> dict[str, object]:
    settings: dict[str, object] = json.loads((folder / "config.json").read_text())["train"]
    return settings


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda run: (run / "config.json").write_text("{garbage"),
    "empty JSON": lambda run: (run / "config.json").write_text(""),
    "bytes": lambda run: (run / "config.json").write_bytes(b"\xff\xfe\x00"),
    "a list": lambda run: (run / "config.json").write_text("[1]"),
    "no train": lambda run: edit(run, {}, ("train",)),
    "train is null": lambda run: edit(run, {"train": None}),
    "no counts": lambda run: edit(run, {}, ("counts",)),
    "no origin": lambda run: edit(run, {}, ("origin",)),
    "no side": lambda run: edit(run, {}, ("side",)),
    "no names": lambda run: edit(run, {}, ("class_names",)),
    "no solver": lambda run: edit(run, {"train": {"net": "lenet"}}),
    "solver is a word": lambda run: edit(run, {"train": train_settings(run) | {"solver": "adam"}}),
    "an option too many": lambda run: edit(run, {"train": train_settings(run) | {"colour": 1}}),
    "a value that cannot be": lambda run: edit(run, {"train": train_settings(run) | {"tau": 0}}),
    "cut weights": lambda run: truncate(run / "weights.safetensors", 600),
    "cut by a byte": lambda run: truncate(
        run / "weights.safetensors", (run / "weights.safetensors").stat().st_size - 1
    ),
    "a weight that changed": lambda run: flip(run / "weights.safetensors", 0.9),
    "a mean that changed": lambda run: flip(run / "mean.safetensors", 0.9),
    "empty weights": lambda run: truncate(run / "weights.safetensors", 0),
    "weights without order": lambda run: safetensors.torch.save_file(
        {"w": torch.zeros(3)}, run / "weights.safetensors"
    ),
    "weights without a tensor": lambda run: safetensors.torch.save_file(
        {"w": torch.zeros(3)}, run / "weights.safetensors", {"sparknet": '{"order": ["w", "v"], "sha256": ""}'}
    ),
    "no mean": lambda run: (run / "mean.safetensors").unlink(),
    "cut mean": lambda run: truncate(run / "mean.safetensors", 100),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_is_named(what: str, saved: Path) -> None:
    before = {path: path.read_bytes() for path in saved.iterdir() if path.is_file()}
    checkpoint.load(saved)
    DAMAGE[what](saved)
    [hurt] = [path for path, data in before.items() if not path.exists() or path.read_bytes() != data]
    with pytest.raises(RunError, match=rf"^{hurt}: damaged: \w+: ") as caught:
        checkpoint.load(saved)
    assert caught.value.__cause__ is not None
    if hurt.name == "config.json":
        with pytest.raises(RunError, match=rf"^{hurt}: damaged: \w+: "):
            checkpoint.load_settings(saved)


def test_how_far_a_folder_is(tmp_path: Path) -> None:
    assert checkpoint.saved_rounds(tmp_path) == 0
    assert not checkpoint.holds_run(tmp_path)
    write(tmp_path, rounds=(2, 4))
    assert checkpoint.saved_rounds(tmp_path) == 4
    assert checkpoint.holds_run(tmp_path)
