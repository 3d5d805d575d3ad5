"""A run's folder: what it was asked, where it stands, what it learned. No pickle: JSON and safetensors.

    RUN/config.json             settings, classes, and what the training set was
    RUN/mean.safetensors        the mean image or values; and the colour components, where the run shifts colours
    RUN/weights.safetensors     the newest checkpoint's weights, as a state_dict that plain PyTorch loads
    RUN/metrics.jsonl           a line a round
    RUN/bad_samples.jsonl       a line a bad sample
    RUN/checkpoints/round-N/    state.json, weights.safetensors, momentum.safetensors: all that resuming needs

Tensors that modules share are saved once, as safetensors.torch.load_model wants them. Each file, and each checkpoint
as a whole, is written beside its name and then renamed.
"""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as deserialize
from safetensors.numpy import save as serialize

import sparknet
from sparknet.errors import ConfigError, RunError
from sparknet.loaders.samples import BadSample
from sparknet.tensor.weights import WeightCollection
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.evaluate import Scores

METRICS = "metrics.jsonl"
_CONFIG, _WEIGHTS, _MEAN, _BAD = "config.json", "weights.safetensors", "mean.safetensors", "bad_samples.jsonl"
_CHECKPOINTS, _STATE, _MOMENTUM = "checkpoints", "state.json", "momentum.safetensors"

# What a damaged file makes its reader raise.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, ConfigError)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run was asked, and what it was asked of.

    Attributes:
        config: of the training.
        side: height and width that images are resized to, pixels.
        class_names: by class index.
        counts: images of each of the training set's blocks: a run is resumed on the same ones only.
        origin: where the sets came from, for whoever resumes (the command line: its arguments).
    """

    config: TrainConfig
    side: int
    class_names: tuple[str, ...]
    counts: tuple[int, ...] = ()
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What an evaluation needs of a run.

    Attributes:
        settings: what it was asked.
        weights: averaged after the last round that was saved.
        mean: (side, side, 3) or (3,) float32, the training set's mean image or values; None where none is subtracted.
    """

    settings: Settings
    weights: WeightCollection
    mean: np.ndarray | None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where a run stands after a round: with `Settings`, all that the rounds to come depend on.

    Which samples come next, how they are cropped and mirrored, and dropout follow from the seed, the worker and the
    number of the iteration, or from the position in the order `global`: these are their whole state.

    Attributes:
        rounds: done.
        images: trained on.
        seconds: of training, evaluations left out.
        weights: the average.
        momentum: flat: the average (mode `averaged`), each worker's (`kept`), or nothing (`reset`).
        scores: of the last evaluation; None where there was none.
        position: minibatches that all workers have drawn, together.
    """

    rounds: int
    images: int
    seconds: float
    weights: WeightCollection
    momentum: tuple[np.ndarray, ...]
    scores: Scores | None = None
    position: int = 0


def refuse_used(out: Path) -> None:
    """Make sure that a folder for a run can be made, and holds no other.

    Raises:
        RunError: it holds one, is no folder, or cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file; name a new folder for the run")
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise RunError(f"{out}: {there} is a file; name another folder for the run")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"{out}: not permitted to write in {there}; name another folder for the run")
    for name in (_CONFIG, METRICS):
        if (out / name).exists():
            raise RunError(
                f"{out}: holds another run already; name a new folder, or go on with that one (--resume {out})"
            )


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run that can be gone on with."""
    return (folder / _CONFIG).is_file()


def saved_rounds(folder: Path) -> int:
    """How many rounds the newest checkpoint of a run's folder has done; 0 where there is none."""
    return next((int(path.name.removeprefix("round-")) for path in _folders(folder)), 0)


def begin(
    settings: Settings,
    mean: np.ndarray | None,
    bad: Iterable[BadSample],
    out: Path,
    colour: np.ndarray | None = None,
) -> None:
    """Make a run's folder, with all that is known before the first round.

    Args:
        settings: of the run.
        mean: (side, side, 3) or (3,) float32, the mean image or values; None where none is subtracted.
        bad: samples left out; a line of bad_samples.jsonl each.
        out: the folder.
        colour: (3, 3) float32, the colour components, where the run shifts colours.

    Raises:
        RunError: it holds another run, or cannot be written.
    """
    refuse_used(out)
    made = not out.exists()
    try:
        with _written(out):
            out.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(sample._asdict()) + "\n" for sample in bad)
            _write(out / _BAD, lines.encode())
            pixels = {name: array for name, array in (("mean", mean), ("colour", colour)) if array is not None}
            if pixels:
                _write(out / _MEAN, _pack(pixels))
        save_settings(settings, out)
    except RunError:
        for name in (_BAD, _MEAN):
            (out / name).unlink(missing_ok=True)
        if made and out.exists():
            out.rmdir()
        raise


def save_settings(settings: Settings, out: Path) -> None:
    """Write config.json; with it a folder holds a run.

    Raises:
        RunError: it cannot be written.
    """
    content = {
        "sparknet": sparknet.__version__,
        "side": settings.side,
        "class_names": settings.class_names,
        "train": dataclasses.asdict(settings.config),
        "counts": settings.counts,
        "origin": dict(settings.origin),
    }
    with _written(out):
        _write(out / _CONFIG, (json.dumps(content, indent=1) + "\n").encode())


def load_settings(folder: Path) -> Settings:
    """Read what a run was asked.

    Raises:
        RunError: the folder holds no run, or a damaged one.
    """
    if not holds_run(folder):
        raise RunError(f"{folder}: holds no run; name the folder that `sparknet train` was given as --out")
    try:
        content: dict[str, Any] = json.loads((folder / _CONFIG).read_text())
        train = dict(content["train"])
        solver = dict(train.pop("solver"))
        solver["step_values"] = tuple(solver["step_values"])
        return Settings(
            config=TrainConfig(**train, solver=SolverConfig(**solver)),
            side=content["side"],
            class_names=tuple(content["class_names"]),
            counts=tuple(content["counts"]),
            origin=dict(content["origin"]),
        )
    except _DAMAGE as error:
        raise RunError(f"{folder / _CONFIG}: damaged: {type(error).__name__}: {error}") from error


def load_pixels(settings: Settings, folder: Path) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Read a run's mean image or values, and its colour components; None each where it uses none.

    Raises:
        RunError: they are missing or damaged.
    """
    used = [settings.config.mean != "none", settings.config.pca_colour > 0]
    if not any(used):
        return None, None
    try:
        pixels = _unpack((folder / _MEAN).read_bytes())
        mean, colour = (pixels[name] if use else None for name, use in zip(("mean", "colour"), used, strict=True))
    except _DAMAGE as error:
        raise RunError(f"{folder / _MEAN}: damaged: {type(error).__name__}: {error}") from error
    return mean, colour


def load(folder: Path) -> Run:
    """Read a run for evaluation.

    Raises:
        RunError: the folder holds none, one without weights yet, or a damaged one.
    """
    settings = load_settings(folder)
    if not (folder / _WEIGHTS).exists():
        raise RunError(f"{folder}: no weights yet, the run was stopped before its first checkpoint; --resume {folder}")
    try:
        weights = WeightCollection.from_arrays(_unpack((folder / _WEIGHTS).read_bytes()))
    except _DAMAGE as error:
        raise RunError(f"{folder / _WEIGHTS}: damaged: {type(error).__name__}: {error}") from error
    return Run(settings=settings, weights=weights, mean=load_pixels(settings, folder)[0])


def save(checkpoint: Checkpoint, out: Path, keep: int) -> None:
    """Write a checkpoint, make its weights the run's, and remove all but the newest checkpoints.

    Args:
        checkpoint: to write.
        out: the run's folder.
        keep: how many to leave, this one among them.

    Raises:
        RunError: it cannot be written; what was there before is untouched.
    """
    files = {_WEIGHTS: _pack(checkpoint.weights)}
    if checkpoint.momentum:
        files[_MOMENTUM] = serialize({f"{i:05d}": array for i, array in enumerate(checkpoint.momentum)})
    state = {
        "rounds": checkpoint.rounds,
        "images": checkpoint.images,
        "seconds": checkpoint.seconds,
        "position": checkpoint.position,
        "scores": dataclasses.asdict(checkpoint.scores) if checkpoint.scores else None,
    }
    sums = {name: _sum(data) for name, data in files.items()} | {_STATE: _sum(json.dumps(state).encode())}
    files[_STATE] = (json.dumps(state | {"sha256": sums}, indent=1) + "\n").encode()
    folder = out / _CHECKPOINTS / f"round-{checkpoint.rounds:08d}"
    beside = _beside(folder)
    try:
        with _written(out):
            if (out / METRICS).exists():
                with (out / METRICS).open("ab") as metrics:
                    os.fsync(metrics.fileno())  # a checkpoint that outlives its rounds' lines could not be resumed
            for stale in folder.parent.glob("*.part"):  # of a run that was killed
                shutil.rmtree(stale)
            beside.mkdir(parents=True)
            for name, data in files.items():
                _write(beside / name, data)
            if folder.exists():
                _remove(folder)  # damaged, or the run would have gone on from it
            beside.replace(folder)
            _write(out / _WEIGHTS, files[_WEIGHTS])
            for old in _folders(out)[keep:]:
                _remove(old)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def save_weights(weights: WeightCollection, out: Path) -> None:
    """Make weights the run's, where those of its folder are missing or of another round.

    Raises:
        RunError: they cannot be written.
    """
    with _written(out):
        _write(out / _WEIGHTS, _pack(weights))


def newest(out: Path) -> tuple[Checkpoint | None, list[str]]:
    """Read the newest checkpoint that is whole.

    Returns:
        The checkpoint, or None where there is none; and what is wrong with each newer one, a line each.
    """
    damaged: list[str] = []
    for folder in _folders(out):
        try:
            return _read(folder), damaged
        except _DAMAGE as error:
            damaged.append(f"{folder}: damaged: {type(error).__name__}: {' '.join(str(error).split())}")
    return None, damaged


def trim_metrics(out: Path, rounds: int) -> None:
    """Take out of metrics.jsonl the lines of rounds that will be run again.

    Args:
        out: the run's folder.
        rounds: how many lines to keep.

    Raises:
        RunError: it cannot be written, or has fewer lines.
    """
    with _written(out):
        lines = (out / METRICS).read_text().splitlines(keepends=True) if rounds else []
        if len(lines) < rounds:
            raise RunError(f"{out / METRICS}: {len(lines)} lines, the checkpoint is of round {rounds}; a damaged run")
        _write(out / METRICS, "".join(lines[:rounds]).encode())


def append_metrics(out: Path, line: Mapping[str, Any]) -> None:
    """Add a line to metrics.jsonl, or nothing.

    Raises:
        RunError: it cannot be written.
    """
    path = out / METRICS
    with _written(out), path.open("a") as file:
        whole = file.tell()
        try:
            file.write(json.dumps(line) + "\n")
            file.flush()
        except OSError:
            os.truncate(path, whole)
            raise


def _folders(out: Path) -> list[Path]:
    """List the checkpoints, newest first; half-written ones are left out."""
    return sorted((out / _CHECKPOINTS).glob("round-????????"), reverse=True)


def _read(folder: Path) -> Checkpoint:
    state: dict[str, Any] = json.loads((folder / _STATE).read_text())
    sums: dict[str, str] = state.pop("sha256")
    files = {name: (folder / name).read_bytes() for name in sums if name != _STATE}
    for name, data in (files | {_STATE: json.dumps(state).encode()}).items():
        if _sum(data) != sums[name]:
            raise ValueError(f"{name} is not what was written (its SHA-256 differs)")
    momentum = deserialize(files[_MOMENTUM]) if _MOMENTUM in files else {}
    return Checkpoint(
        rounds=state["rounds"],
        images=state["images"],
        seconds=state["seconds"],
        weights=WeightCollection.from_arrays(_unpack(files[_WEIGHTS])),
        momentum=tuple(momentum[name] for name in sorted(momentum)),
        scores=Scores(**state["scores"]) if state["scores"] else None,
        position=state.get("position", 0),  # earlier ones have none, and no order that needs it
    )


def _sum(*pieces: bytes | np.ndarray) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(np.ascontiguousarray(piece).data if isinstance(piece, np.ndarray) else piece)
    return digest.hexdigest()


def _pack(tensors: Mapping[str, np.ndarray]) -> bytes:
    # safetensors sorts its tensors, and a flat buffer must keep its order. Of several keys it would shuffle the order.
    ours = {"order": list(tensors), "sha256": _sum(*tensors.values())}
    return serialize(dict(tensors), metadata={"sparknet": json.dumps(ours)})


def _unpack(data: bytes) -> dict[str, np.ndarray]:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    ours = json.loads(header["__metadata__"]["sparknet"])
    found = deserialize(data)
    tensors = {name: found[name] for name in ours["order"]}
    if _sum(*tensors.values()) != ours["sha256"] or len(tensors) != len(found):
        raise ValueError("its tensors are not what was written (their SHA-256 differs)")
    return tensors


@contextmanager
def _written(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "; make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise RunError(f"{error.filename or out}: cannot be written: {error.strerror or error}{remedy}") from error


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _remove(folder: Path) -> None:
    # Renamed first: a run that is killed here must not leave half a checkpoint under a real name.
    gone = folder.with_name(f"{folder.name}.old.part")
    folder.replace(gone)
    shutil.rmtree(gone)


def _write(path: Path, data: bytes) -> None:
    beside = _beside(path)
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # a rename that outlives its content would leave a whole name and half a file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
