import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from sparknet.errors import RunError
from sparknet.loaders.samples import BadSample
from sparknet.train import checkpoint
from sparknet.train.checkpoint import METRICS, Run
from sparknet.train.config import SolverConfig, TrainConfig
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


def run_of(config: TrainConfig = CONFIG) -> Run:
    weights = fresh(config).get_weights().copy()
    rng = np.random.default_rng(0)
    weights.flat[:] = rng.normal(size=len(weights.flat))
    mean = rng.uniform(0, 255, (16, 16, 3)).astype(np.float32) if config.subtract_mean else None
    return Run(config=config, side=16, class_names=("cat", "dog, hund", "überbus"), weights=weights, mean=mean)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "deep" / "run"
    checkpoint.create_folder(folder, ())
    checkpoint.save(run_of(), folder)
    return folder


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, subtract_mean=False),
        replace(CONFIG, net="tests.train.networks:Wide"),
        replace(CONFIG, net="tests.train.networks:Tied"),
        TrainConfig(net="lenet", crop=28),
    ],
    ids=["batchnorm", "no mean", "float64", "tied", "defaults"],
)
def test_a_run_comes_back_to_the_bit(config: TrainConfig, tmp_path: Path) -> None:
    run = run_of(config)
    checkpoint.create_folder(tmp_path / "run", ())
    checkpoint.save(run, tmp_path / "run")
    again = checkpoint.load(tmp_path / "run")
    assert (again.config, again.side, again.class_names) == (run.config, run.side, run.class_names)
    assert list(again.weights) == list(run.weights)
    assert again.weights.shapes == run.weights.shapes
    assert again.weights.flat.dtype == run.weights.flat.dtype
    assert again.weights.flat.tobytes() == run.weights.flat.tobytes()
    if run.mean is None:
        assert again.mean is None
    else:
        assert again.mean is not None
        assert again.mean.tobytes() == run.mean.tobytes()
    assert hash(again.config) == hash(run.config)


def test_weights_keep_their_order_although_safetensors_sorts(saved: Path) -> None:
    names = list(checkpoint.load(saved).weights)
    assert names == list(fresh(CONFIG).get_weights())
    assert names != sorted(names)
    net = fresh(replace(CONFIG, seed=1))
    net.set_weights(checkpoint.load(saved).weights.flat)
    for name, tensor in net.module.state_dict().items():
        if tensor.is_floating_point():
            np.testing.assert_array_equal(tensor.numpy(), run_of().weights[name])


@pytest.mark.parametrize("net", ["tests.train.networks:batchnorm", "tests.train.networks:Wide", "cifar10_quick"])
def test_plain_pytorch_loads_the_weights(net: str, tmp_path: Path) -> None:
    run = run_of(replace(CONFIG, net=net))
    checkpoint.create_folder(tmp_path, ())
    checkpoint.save(run, tmp_path)
    module = build(net, 3, 12, seed=5)
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "weights.safetensors"), strict=True)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            np.testing.assert_array_equal(tensor.numpy(), run.weights[name])


def test_safetensors_own_loader_takes_tied_weights(tmp_path: Path) -> None:
    run = run_of(replace(CONFIG, net="tests.train.networks:Tied"))
    checkpoint.create_folder(tmp_path, ())
    checkpoint.save(run, tmp_path)
    module = build("tests.train.networks:Tied", 3, 12, seed=5)
    safetensors.torch.load_model(module, tmp_path / "weights.safetensors", strict=True)
    np.testing.assert_array_equal(module.state_dict()["second.weight"].numpy(), run.weights["first.weight"])


def test_saving_again_replaces(saved: Path) -> None:
    run = run_of()
    run.weights.flat[:] = 7
    checkpoint.save(run, saved)
    assert np.unique(checkpoint.load(saved).weights.flat).tolist() == [7]
    assert {path.name for path in saved.iterdir()} == {
        "bad_samples.jsonl",
        "config.json",
        "mean.safetensors",
        "weights.safetensors",
    }


def test_bad_samples_are_named_a_line_each(tmp_path: Path) -> None:
    bad = [BadSample("a/1", "file:/x.tar", 512, "not an image"), BadSample("ü\n", "s3://b/y.tar", 0, "no label")]
    checkpoint.create_folder(tmp_path / "run", bad)
    lines = (tmp_path / "run" / "bad_samples.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"key": "a/1", "url": "file:/x.tar", "offset": 512, "reason": "not an image"},
        {"key": "ü\n", "url": "s3://b/y.tar", "offset": 0, "reason": "no label"},
    ]


@pytest.mark.parametrize("name", ["config.json", METRICS])
def test_a_used_folder_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("precious")
    for call in (checkpoint.refuse_used, lambda out: checkpoint.create_folder(out, ())):
        with pytest.raises(RunError, match=rf"^{tmp_path}: holds another run already; name a new folder, or remove"):
            call(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "precious")]


def test_a_folder_of_other_files_is_taken(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.create_folder(tmp_path, ())
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=rf"^{tmp_path}/file: is a file; name a new folder for the run$"):
        checkpoint.refuse_used(tmp_path / "file")
    with pytest.raises(RunError, match=rf"^{tmp_path}/file/run: cannot make the run's folder: Not a directory$"):
        checkpoint.create_folder(tmp_path / "file" / "run", ())


def test_nothing_is_left_of_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    checkpoint.create_folder(tmp_path / "run", ())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(
            RunError, match=rf"^{tmp_path}/run: cannot save the run: .*No space left on device"
        ) as caught:
            checkpoint.save(run_of(), tmp_path / "run")
        with pytest.raises(RunError, match=rf"^{tmp_path}/new: cannot make the run's folder: No space left on device$"):
            checkpoint.create_folder(tmp_path / "new", ())
    assert isinstance(caught.value.__cause__, OSError)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["bad_samples.jsonl"]
    assert not list((tmp_path / "new").iterdir())


def test_a_failed_write_leaves_the_last_save(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = checkpoint.load(saved).weights.flat.copy()
    changed = run_of()
    changed.weights.flat[:] = 0

    def half(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", half)
        with pytest.raises(RunError, match="No space left"):
            checkpoint.save(changed, saved)
    assert checkpoint.load(saved).weights.flat.tobytes() == before.tobytes()
    assert not list(saved.glob("*.part"))


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_folder_without_a_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=rf"^{tmp_path}/{name}: holds no run; name the folder that `sparknet train` was"):
        checkpoint.load(tmp_path / name)


def edit(folder: Path, change: dict[str, object], drop: tuple[str, ...] = ()) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in settings.items() if key not in drop}))


def train_settings(folder: Path) -> dict[str, object]:
    settings: dict[str, object] = json.loads((folder / "config.json").read_text())["train"]
    return settings


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


DAMAGE = {
    "no JSON": lambda run: (run / "config.json").write_text("{garbage"),
    "empty JSON": lambda run: (run / "config.json").write_text(""),
    "bytes": lambda run: (run / "config.json").write_bytes(b"\xff\xfe\x00"),
    "a list": lambda run: (run / "config.json").write_text("[1]"),
    "no train": lambda run: edit(run, {}, ("train",)),
    "train is null": lambda run: edit(run, {"train": None}),
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
    "empty weights": lambda run: truncate(run / "weights.safetensors", 0),
    "no weights": lambda run: (run / "weights.safetensors").unlink(),
    "weights without order": lambda run: safetensors.torch.save_file(
        {"w": torch.zeros(3)}, run / "weights.safetensors"
    ),
    "weights without a tensor": lambda run: safetensors.torch.save_file(
        {"w": torch.zeros(3)}, run / "weights.safetensors", {"order": '["w", "v"]'}
    ),
    "no mean": lambda run: (run / "mean.safetensors").unlink(),
    "cut mean": lambda run: truncate(run / "mean.safetensors", 100),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_run_is_named(damage: object, saved: Path) -> None:
    checkpoint.load(saved)
    damage(saved)  # type: ignore[operator]
    with pytest.raises(RunError, match=rf"^{saved}: a damaged run: \w+: ") as caught:
        checkpoint.load(saved)
    assert caught.value.__cause__ is not None
