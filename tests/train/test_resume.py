"""A run that was stopped goes on as if nothing had happened: stopped by an exception here, by SIGKILL below."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from sparknet.errors import ConfigError, RunError
from sparknet.loaders.blocks import Blocks
from sparknet.loaders.elastic import GlobalOrder, Turn, partition_sizes
from sparknet.loaders.orders import epochs
from sparknet.train import checkpoint
from sparknet.train.config import TrainConfig
from sparknet.train.trainer import Result, RoundMetrics, train
from tests.sets import TinySet
from tests.train.killed_run import CONFIG as KILLED
from tests.train.test_checkpoint import bits, flip, folder_of, halves

ROOT = Path(__file__).parents[2]

# Whatever a run draws at random is in it: order, crops, mirroring, dropout. The rate drops within round 4.
CONFIG = replace(KILLED, rounds=6, keep_checkpoints=3, solver=replace(KILLED.solver, step_size=7))
TIMES = {"seconds", "compute_s", "data_s", "communicate_s"}


def metrics_of(out: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl, without times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def end_of(out: Path) -> tuple[object, ...]:
    """All that a run ends with, to the bit; without times."""
    state, damaged = checkpoint.newest(out)
    assert state is not None
    assert damaged == []
    assert halves(out) == []
    names = ("weights.safetensors", "mean.safetensors", "config.json", "bad_samples.jsonl")
    return bits(replace(state, seconds=0)), metrics_of(out), [(out / name).read_bytes() for name in names]


def files_of(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def stopped(
    blocks: tuple[Blocks, Blocks], config: TrainConfig, out: Path, after: int, resume: bool = False
) -> list[int]:
    """Train until a round is done; give the rounds that were run."""
    seen = []

    def stop(metrics: RoundMetrics) -> None:
        seen.append(metrics.round)
        if metrics.round == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(*blocks, config, out=out, resume=resume, on_round=stop)
    return seen


def resumed(blocks: tuple[Blocks, Blocks], config: TrainConfig, out: Path) -> tuple[Result, list[int]]:
    seen: list[int] = []
    return train(*blocks, config, out=out, resume=True, on_round=lambda metrics: seen.append(metrics.round)), seen


@pytest.fixture(scope="module")
def both(train_blocks: Blocks, val_blocks: Blocks) -> tuple[Blocks, Blocks]:
    return train_blocks, val_blocks


Both = tuple[Blocks, Blocks]
Straight = Callable[[TrainConfig], tuple[Result, Path]]


@pytest.fixture(scope="module")
def straight(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Give a run that was never stopped."""
    made: dict[TrainConfig, tuple[Result, Path]] = {}

    def make(config: TrainConfig) -> tuple[Result, Path]:
        if config not in made:
            out = tmp_path_factory.mktemp("straight") / "run"
            made[config] = train(*both, config, out=out), out
        return made[config]

    return make


@pytest.fixture(scope="module")
def stopped_run(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stopped") / "run"
    assert stopped(both, CONFIG, out, after=5) == [1, 2, 3, 4, 5]
    return out


@pytest.fixture
def half(stopped_run: Path, tmp_path: Path) -> Path:
    """A run that was stopped after round 5 of 6: checkpoints of rounds 2 and 4 are there."""
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


ELASTIC = replace(CONFIG, order="global", momentum_mode="averaged")


def test_a_run_of_the_global_order_stopped_again_and_again(both: Both, tmp_path: Path) -> None:
    expected = train(*both, ELASTIC, out=tmp_path / "straight")
    out = tmp_path / "run"
    assert stopped(both, ELASTIC, out, after=3) == [1, 2, 3]
    assert stopped(both, ELASTIC, out, after=5, resume=True) == [3, 4, 5]
    result, seen = resumed(both, ELASTIC, out)
    assert seen == [5, 6]
    assert end_of(out) == end_of(tmp_path / "straight")
    assert result.run.weights.flat.tobytes() == expected.run.weights.flat.tobytes()


def test_the_global_order_goes_on_at_another_k(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The minibatches of the whole run are those of one worker alone: none left out, none twice."""
    dealt: list[Turn] = []
    undisturbed = GlobalOrder.deal

    def deal(order: GlobalOrder, position: int, workers: int, tau: int) -> list[list[Turn]]:
        found = undisturbed(order, position, workers, tau)
        dealt.extend(turn for turns in found for turn in turns)
        return found

    monkeypatch.setattr(GlobalOrder, "deal", deal)
    out = tmp_path / "run"
    train(*both, replace(ELASTIC, rounds=2), out=out)
    train(*both, replace(ELASTIC, rounds=4, workers=1), out=out, resume=True)
    result = train(*both, ELASTIC, out=out, resume=True)
    state, _ = checkpoint.newest(out)
    assert state is not None
    assert state.position == len(dealt) == ELASTIC.tau * (2 * 2 + 2 * 1 + 2 * 2)
    order = GlobalOrder(partition_sizes(both[0].counts), ELASTIC.batch, "kept")
    assert sorted(dealt) == sorted(order.turn(position) for position in range(len(dealt)))
    assert result.images == sum(
        len(epochs(size, ELASTIC.batch, "kept", (0, 0))(turn.iteration))
        for turn in dealt
        for size in [partition_sizes(both[0].counts)[turn.partition]]
    )


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, order="global"), replace(CONFIG, momentum_mode="averaged")])
def test_what_is_each_worker_s_cannot_go_on_at_another_k(config: TrainConfig, both: Both, tmp_path: Path) -> None:
    stopped(both, config, tmp_path / "run", after=3)
    with pytest.raises(ConfigError, match=r"was begun with workers = 2, which cannot become 1; begin a new run"):
        resumed(both, replace(config, workers=1), tmp_path / "run")


@pytest.mark.parametrize("mode", ["kept", "reset", "averaged"])
def test_a_run_stopped_again_and_again_ends_in_the_same_bits(
    mode: Any, both: Both, straight: Straight, tmp_path: Path
) -> None:
    config = replace(CONFIG, momentum_mode=mode)
    expected, other = straight(config)
    out = tmp_path / "run"
    assert stopped(both, config, out, after=1) == [1]
    assert stopped(both, config, out, after=2, resume=True) == [1, 2]  # there was no checkpoint yet
    assert stopped(both, config, out, after=3, resume=True) == [3]
    assert stopped(both, config, out, after=5, resume=True) == [3, 4, 5]  # round 3 and its evaluation once more
    result, seen = resumed(both, config, out)
    assert seen == [5, 6]
    assert end_of(out) == end_of(other)
    assert result.run.weights.flat.tobytes() == expected.run.weights.flat.tobytes()
    assert result.scores == expected.scores
    assert (result.rounds, result.images) == (expected.rounds, expected.images) == (6, 6 * 2 * 2 * 7)
    state, _ = checkpoint.newest(out)
    assert state is not None
    assert len(state.momentum) == {"kept": 2, "reset": 0, "averaged": 1}[mode]
    assert [line["round"] for line in metrics_of(out)] == [1, 2, 3, 4, 5, 6]
    assert [line["round"] for line in metrics_of(out) if "top1" in line] == [3, 6]


VARIED = replace(
    CONFIG, resized_crop=True, pca_colour=0.1, mean="channel", bgr=True, test_crops=10, momentum_mode="averaged"
)


def test_a_run_of_every_augmentation_goes_on_with_the_same_bits(both: Both, straight: Straight, tmp_path: Path) -> None:
    expected, other = straight(VARIED)
    out = tmp_path / "run"
    assert stopped(both, VARIED, out, after=3) == [1, 2, 3]
    colour = load_file(out / "mean.safetensors")["colour"]
    assert np.array_equal(colour, both[0].colour_components())
    result, seen = resumed(both, VARIED, out)
    assert seen == [3, 4, 5, 6]
    assert end_of(out) == end_of(other)
    assert result.scores == expected.scores
    assert expected.run.mean is not None
    assert expected.run.mean.shape == (3,)
    np.testing.assert_allclose(expected.run.mean, both[0].mean_image().mean(axis=(0, 1)), rtol=1e-6)


@pytest.mark.parametrize("change", [{"pca_colour": 0.0}, {"resized_crop": False}, {"bgr": False}, {"mean": "none"}])
def test_every_augmentation_changes_the_weights(change: dict[str, Any], both: Both) -> None:
    short = replace(VARIED, rounds=1)
    with_all, without = (train(*both, config).run.weights.flat for config in (short, replace(short, **change)))
    assert not np.array_equal(with_all, without)


def test_the_modes_end_in_different_bits(straight: Straight) -> None:
    modes: tuple[Any, ...] = ("kept", "reset", "averaged")
    assert len({straight(replace(CONFIG, momentum_mode=mode))[0].run.weights.flat.tobytes() for mode in modes}) == 3


def test_momentum_is_needed_for_the_same_bits(both: Both, half: Path, straight: Straight) -> None:
    state, _ = checkpoint.newest(half)
    assert state is not None
    checkpoint.save(replace(state, momentum=()), half, keep=3)
    result, _ = resumed(both, CONFIG, half)
    assert result.run.weights.flat.tobytes() != straight(CONFIG)[0].run.weights.flat.tobytes()


@pytest.mark.parametrize(("hurt", "start"), [((4,), 2), ((2, 4), 0)])
def test_after_damage_the_one_before_is_named_and_used(
    hurt: tuple[int, ...],
    start: int,
    both: Both,
    half: Path,
    straight: Straight,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for rounds in hurt:
        flip(folder_of(half, rounds) / "weights.safetensors", 0.9)
    with caplog.at_level(logging.WARNING, "sparknet"):
        _, seen = resumed(both, CONFIG, half)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("sparknet")] == [
        f"{folder_of(half, rounds)}: damaged: ValueError: weights.safetensors is not what was written (its SHA-256 "
        f"differs); going on from round {start}"
        for rounds in reversed(hurt)
    ]
    assert seen == list(range(start + 1, 7))
    assert end_of(half) == end_of(straight(CONFIG)[1])


def test_half_a_checkpoint_is_gone_in_the_end(both: Both, half: Path, straight: Straight) -> None:
    for name in ("round-00000005.part", "round-00000002.old.part"):
        (half / "checkpoints" / name).mkdir()
        (half / "checkpoints" / name / "state.json").write_text("{}")
    (half / "weights.safetensors.part").write_bytes(b"half")
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"round": 6, "ima')
    resumed(both, CONFIG, half)
    assert end_of(half) == end_of(straight(CONFIG)[1])


def test_a_finished_run_gives_its_result_again(both: Both, straight: Straight) -> None:
    expected, out = straight(CONFIG)
    before = files_of(out)
    (out / "weights.safetensors").unlink()  # as where the run was killed before it wrote them for the last time
    result, seen = resumed(both, CONFIG, out)
    assert seen == []
    assert files_of(out) == before
    assert result.run.weights.flat.tobytes() == expected.run.weights.flat.tobytes()
    assert result.run.mean is not None
    assert expected.run.mean is not None
    assert result.run.mean.tobytes() == expected.run.mean.tobytes()
    assert replace(result, run=expected.run) == expected


def test_more_rounds_than_the_run_was_begun_with(both: Both, straight: Straight, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(*both, replace(CONFIG, rounds=3), out=out)
    _, seen = resumed(both, CONFIG, out)
    assert seen == [4, 5, 6]
    assert end_of(out) == end_of(straight(CONFIG)[1])
    assert checkpoint.load(out).settings.config == CONFIG


def test_how_often_to_evaluate_and_to_save_may_change(both: Both, half: Path, straight: Straight) -> None:
    config = replace(CONFIG, test_every=1, checkpoint_every=5, keep_checkpoints=1)
    result, _ = resumed(both, config, half)
    assert result.run.weights.flat.tobytes() == straight(CONFIG)[0].run.weights.flat.tobytes()
    assert [line["round"] for line in metrics_of(half) if "top1" in line] == [3, 5, 6]
    assert [path.name for path in (half / "checkpoints").iterdir()] == ["round-00000006"]


def test_where_the_sets_came_from_is_kept(both: Both, tmp_path: Path) -> None:
    config, origin = replace(CONFIG, rounds=1), {"source": "/sets/train.tar", "val": None}
    train(*both, config, out=tmp_path / "run", origin=origin)
    resumed(both, replace(config, rounds=2), tmp_path / "run")
    assert checkpoint.load_settings(tmp_path / "run").origin == origin


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 3}, "was begun with tau = 2, which cannot become 3; begin a new run"),
        ({"seed": 1}, "was begun with seed = 0, which cannot become 1; begin a new run"),
        ({"batch": 8}, "was begun with batch = 7, which cannot become 8; begin a new run"),
        ({"workers": 1}, "was begun with workers = 2, which cannot become 1; begin a new run"),
        ({"threads": 2}, "was begun with threads = 1, which cannot become 2; begin a new run"),
        ({"mirror": False}, "was begun with mirror = True, which cannot become False; begin a new run"),
        ({"momentum_mode": "reset"}, "was begun with momentum_mode = kept, which cannot become reset; begin a new run"),
        (
            {"solver": replace(CONFIG.solver, base_lr=0.1)},
            "was begun with base_lr = 0.05, which cannot become 0.1; begin a new run",
        ),
        ({"rounds": 3}, "4 rounds are done, more than the 3 asked for"),
    ],
)
def test_other_settings_are_refused(change: dict[str, Any], message: str, both: Both, half: Path) -> None:
    before = files_of(half)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{half}: {message}')}$"):
        resumed(both, replace(CONFIG, **change), half)
    assert files_of(half) == before


@pytest.mark.parametrize(
    ("change", "now"),
    [
        ({"counts": (9,) * 6 + (10,)}, "64 of side 16 in 3 now"),
        ({"counts": (8, 10) + (9,) * 5}, "63 of side 16 in 3 now"),
        ({"side": 20}, "63 of side 20 in 3 now"),
        ({"class_names": ("a", "b", "c")}, "63 of side 16 in 3 now"),
    ],
)
def test_another_set_is_refused(change: dict[str, Any], now: str, both: Both, half: Path) -> None:
    if "counts" in change:
        sizes = zip(both[0].handles, change["counts"], strict=True)
        change = {"handles": tuple(replace(block, labels=np.zeros(n, np.int64)) for block, n in sizes)}
    before = files_of(half)
    message = (
        f"{half}: its training set was another one: 63 images of side 16 in 3 classes then, {now}, or otherwise "
        "divided; give the set that it was begun with"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        train(replace(both[0], **change), None, CONFIG, out=half, resume=True)
    assert files_of(half) == before


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_folder_without_a_run(name: str, both: Both, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=rf"^{tmp_path}/{name}: holds no run; "):
        resumed(both, CONFIG, tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_no_folder_at_all(both: Both) -> None:
    with pytest.raises(ConfigError, match=r"^there is no folder to resume from; give out$"):
        train(*both, CONFIG, resume=True)


# ---- Killed with -9.

SEED = 3
# How many times; scripts/soak.sh asks for more. None of them takes a run five rounds further.
KILLS = int(os.environ.get("SPARKNET_KILLS", "10"))
KILLED_CONFIG = replace(KILLED, rounds=5 * KILLS)
# What is drawn for each: the n-th such moment since the process started, n from 1 to here.
MOMENTS = {"round": 2, "middle": 2, "evaluate": 1, "write": 11, "between": 2, "remove": 1}


def killed_run(tiny: TinySet, out: Path, scratch: Path, moment: str, n: int = 1, delay_s: float = 0) -> int:
    """Begin a run, or go on with it, in a process that is killed; give its exit status."""
    words = ["--train", tiny.train, "--val", tiny.val, "--labels", tiny.val_txt, "--out", out]
    words += ["--rounds", KILLED_CONFIG.rounds, "--moment", moment, "--n", n, "--delay-s", delay_s]
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.killed_run", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def check_whole(out: Path) -> int:
    """Make sure that a killed run is whole as far as it came, or is no run yet; give the rounds that are safe."""
    if not (out / "config.json").exists():
        checkpoint.refuse_used(out)
        return 0
    assert checkpoint.load_settings(out).config == KILLED_CONFIG
    found, damaged = checkpoint.newest(out)
    assert damaged == []
    folders = list((out / "checkpoints").glob("round-????????"))
    for folder in folders:
        checkpoint._read(folder)
    assert len(folders) <= KILLED.keep_checkpoints + 1
    if (out / "weights.safetensors").exists():
        assert np.isfinite(checkpoint.load(out).weights.flat).all()
    else:
        assert len(folders) <= 1  # before the first checkpoint, or between it and the copy of its weights
        with pytest.raises(RunError, match="no weights yet"):
            checkpoint.load(out)
    return found.rounds if found else 0


@pytest.mark.heavy
@pytest.mark.timeout(0)  # as long as so many take
def test_a_run_killed_again_and_again_ends_in_the_same_bits(tiny: TinySet, tmp_path: Path) -> None:
    assert killed_run(tiny, tmp_path / "straight" / "run", tmp_path, "never") == 0
    rng, out = np.random.default_rng(SEED), tmp_path / "killed" / "run"
    moments = [*MOMENTS, "round", "middle", "evaluate", "write"] * -(-KILLS // 10)
    reached = []
    for moment in rng.permutation(moments)[:KILLS]:
        n, delay_s = int(rng.integers(1, MOMENTS[moment] + 1)), float(rng.uniform(0, 0.2))
        killed = killed_run(tiny, out, tmp_path, moment, n, delay_s)
        assert killed == -signal.SIGKILL, f"{moment} {n} did not come before the end"
        reached.append(check_whole(out))
    assert reached == sorted(reached)
    assert len(reached) == KILLS
    assert killed_run(tiny, out, tmp_path, "never") == 0
    assert end_of(out) == end_of(tmp_path / "straight" / "run")
    assert len(metrics_of(out)) == KILLED_CONFIG.rounds
    assert len(list((out / "checkpoints").iterdir())) == KILLED.keep_checkpoints
