"""A run's folder: what it was asked, the weights, the mean image. No pickle: JSON and safetensors.

RUN/config.json, RUN/weights.safetensors (a state_dict that plain PyTorch loads; tensors that modules share are in it
once, as safetensors.torch.load_model wants them), RUN/mean.safetensors, RUN/metrics.jsonl (a line a round),
RUN/bad_samples.jsonl.
"""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as serialize

import sparknet
from sparknet.errors import ConfigError, RunError
from sparknet.loaders.samples import BadSample
from sparknet.tensor.weights import WeightCollection
from sparknet.train.config import SolverConfig, TrainConfig

METRICS = "metrics.jsonl"
_CONFIG, _WEIGHTS, _MEAN = "config.json", "weights.safetensors", "mean.safetensors"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What an evaluation needs of a run.

    Attributes:
        config: of the training.
        side: height and width that images are resized to, pixels.
        class_names: by class index.
        weights: averaged after the last round that was saved.
        mean: (side, side, 3) float32, the training set's mean image; None where none is subtracted.
    """

    config: TrainConfig
    side: int
    class_names: tuple[str, ...]
    weights: WeightCollection
    mean: np.ndarray | None


def refuse_used(out: Path) -> None:
    """Make sure that a folder for a run holds no other.

    Raises:
        RunError: it does, or is no folder.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file; name a new folder for the run")
    for name in (_CONFIG, METRICS):
        if (out / name).exists():
            raise RunError(f"{out}: holds another run already; name a new folder, or remove that one")


def create_folder(out: Path, bad: Iterable[BadSample]) -> None:
    """Make a run's folder, and name the bad samples of its sets in it.

    Args:
        out: the folder.
        bad: a line of bad_samples.jsonl each.

    Raises:
        RunError: it holds another run, or cannot be made.
    """
    refuse_used(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(sample._asdict()) + "\n" for sample in bad)
        _write(out / "bad_samples.jsonl", lines.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot make the run's folder: {error.strerror}") from error


def save(run: Run, out: Path) -> None:
    """Write a run, each file beside its name and then renamed.

    Raises:
        RunError: the folder cannot be written.
    """
    settings = {
        "sparknet": sparknet.__version__,
        "side": run.side,
        "class_names": run.class_names,
        "train": dataclasses.asdict(run.config),
    }
    try:
        if run.mean is not None:
            _write(out / _MEAN, serialize({"mean": run.mean}))
        order = {"order": json.dumps(list(run.weights))}  # safetensors sorts tensors, a flat buffer must not
        _write(out / _WEIGHTS, serialize(dict(run.weights), metadata=order))
        _write(out / _CONFIG, (json.dumps(settings, indent=1) + "\n").encode())
    except (OSError, SafetensorError) as error:
        raise RunError(f"{out}: cannot save the run: {error}") from error


def load(folder: Path) -> Run:
    """Read a run.

    Raises:
        RunError: the folder holds none, or a damaged one.
    """
    if not (folder / _CONFIG).is_file():
        raise RunError(f"{folder}: holds no run; name the folder that `sparknet train` was given as --out")
    try:
        settings: dict[str, Any] = json.loads((folder / _CONFIG).read_text())
        train = dict(settings["train"])
        solver = dict(train.pop("solver"))
        solver["step_values"] = tuple(solver["step_values"])
        config = TrainConfig(**train, solver=SolverConfig(**solver))
        with safe_open(folder / _WEIGHTS, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in json.loads(file.metadata()["order"])}
        return Run(
            config=config,
            side=settings["side"],
            class_names=tuple(settings["class_names"]),
            weights=WeightCollection.from_arrays(tensors),
            mean=load_file(folder / _MEAN)["mean"] if config.subtract_mean else None,
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, ConfigError) as error:
        raise RunError(f"{folder}: a damaged run: {type(error).__name__}: {error}") from error


def _write(path: Path, data: bytes) -> None:
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
