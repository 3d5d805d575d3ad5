import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark import SparkContext

from sparknet.errors import ConfigError, DivergedError, LabelError, RunError
from sparknet.loaders.blocks import Blocks, cache
from sparknet.loaders.samples import read_samples
from sparknet.train import checkpoint
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.evaluate import evaluate
from sparknet.train.solver import learning_rate
from sparknet.train.trainer import Result, RoundMetrics, train
from tests.sets import TinySet, jpeg, tar_bytes
from tests.train.serial import next_round, start

CONFIG = TrainConfig(
    net="tests.train.networks:plain",
    crop=14,
    batch=8,
    workers=2,
    tau=5,
    rounds=7,
    test_every=3,
    scale=1 / 64,
    solver=SolverConfig(base_lr=0.05, weight_decay=0.001, policy="step", gamma=0.5, step_size=20),
)


def trained(
    train_blocks: Blocks, val_blocks: Blocks | None, config: TrainConfig, out: Path | None = None
) -> tuple[Result, list[RoundMetrics]]:
    seen: list[RoundMetrics] = []
    return train(train_blocks, val_blocks, config, out=out, on_round=seen.append), seen


def lines_of(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(
    train_blocks: Blocks, val_blocks: Blocks, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, list[RoundMetrics], Path]:
    out = tmp_path_factory.mktemp("trained") / "run"
    return *trained(train_blocks, val_blocks, CONFIG, out), out


Finished = tuple[Result, list[RoundMetrics], Path]


def test_metrics_have_a_line_a_round(finished: Finished) -> None:
    result, seen, out = finished
    lines = lines_of(out / "metrics.jsonl")
    assert [line["round"] for line in lines] == list(range(1, 8))
    # 2 workers, 5 iterations of 8 images: 80 a round.
    assert [line["images"] for line in lines] == [80 * n for n in range(1, 8)]
    assert (result.rounds, result.images) == (7, 560)
    for line, metrics in zip(lines, seen, strict=True):
        assert line == {name: value for name, value in vars(metrics).items() if value is not None}
        assert line["rate"] == learning_rate(CONFIG.solver, int(line["round"]) * 5 - 1)
        assert line["momentum_lost"] == 0
        assert line["loss"] > 0
        parts = line["compute_s"] + line["data_s"] + line["communicate_s"]
        assert parts == pytest.approx(line["seconds"])
        assert min(line["compute_s"], line["data_s"], line["communicate_s"]) > 0
    assert [line["rate"] for line in lines] == [0.05] * 4 + [0.025] * 3  # round 5 begins at iteration 20


def test_images_a_second_are_images_over_the_rounds_seconds(finished: Finished) -> None:
    result, seen, _ = finished
    assert result.seconds == pytest.approx(sum(metrics.seconds for metrics in seen))
    assert result.images_per_s == pytest.approx(560 / result.seconds)


def test_it_evaluates_every_so_many_rounds_and_once_at_the_end(finished: Finished) -> None:
    result, seen, _ = finished
    assert [metrics.round for metrics in seen if metrics.top1 is not None] == [3, 6, 7]
    assert [metrics.round for metrics in seen if metrics.top5 is not None] == [3, 6, 7]
    assert [metrics.round for metrics in seen if metrics.test_loss is not None] == [3, 6, 7]
    assert result.scores is not None
    assert result.scores.samples == 31
    assert seen[-1].top1 == result.scores.top1
    assert seen[-1].test_loss == pytest.approx(result.scores.loss / 31)


def test_it_learns(finished: Finished) -> None:
    result, seen, _ = finished
    assert result.scores is not None
    assert result.scores.top1 > 0.8  # chance is a third
    assert result.scores.top5 == 1
    assert seen[-1].loss < seen[0].loss / 2


def test_what_is_saved_is_what_was_last_evaluated(finished: Finished, val_blocks: Blocks) -> None:
    result, _, out = finished
    run = checkpoint.load(out)
    assert run.settings.config == CONFIG
    assert run.settings.side == 16
    assert run.settings.class_names == val_blocks.class_names
    assert run.weights.flat.tobytes() == result.run.weights.flat.tobytes()
    assert run.mean is not None
    assert evaluate(val_blocks, run.weights, run.mean, run.settings.config, 3) == result.scores
    assert (out / "bad_samples.jsonl").read_text() == ""


def test_the_weights_are_the_serial_runs(finished: Finished, train_blocks: Blocks) -> None:
    result, _, _ = finished
    shares, mean, state = train_blocks.shares(2), train_blocks.mean_image(), start(CONFIG)
    blocks = shares.collect()
    shares.unpersist()
    for number in range(CONFIG.rounds):
        state = next_round(state, number, blocks, CONFIG, mean)
    np.testing.assert_array_equal(result.run.weights.flat, state.weights)


def test_the_same_seed_gives_the_same_bits_and_another_others(train_blocks: Blocks, finished: Finished) -> None:
    config = replace(CONFIG, rounds=2, net="tests.train.networks:dropout", mirror=True)
    runs = [trained(train_blocks, None, replace(config, seed=seed))[0].run.weights.flat for seed in (0, 0, 1)]
    assert runs[0].tobytes() == runs[1].tobytes()
    assert runs[0].tobytes() != runs[2].tobytes()


@pytest.mark.parametrize(("rounds", "every", "expected"), [(4, 2, [2, 4]), (1, 50, [1]), (2, 1, [1, 2])])
def test_an_evaluation_that_falls_on_the_last_round_comes_once(
    rounds: int, every: int, expected: list[int], train_blocks: Blocks, val_blocks: Blocks
) -> None:
    _, seen = trained(train_blocks, val_blocks, replace(CONFIG, rounds=rounds, test_every=every, tau=1))
    assert [metrics.round for metrics in seen if metrics.top1 is not None] == expected


def test_without_a_validation_set_there_are_no_scores_but_a_run(train_blocks: Blocks, tmp_path: Path) -> None:
    config = replace(CONFIG, rounds=2, mean="none")
    result, seen = trained(train_blocks, None, config, tmp_path / "run")
    assert result.scores is None
    assert [metrics.top1 for metrics in seen] == [None, None]
    assert "top1" not in lines_of(tmp_path / "run" / "metrics.jsonl")[-1]
    run = checkpoint.load(tmp_path / "run")
    assert run.mean is None
    assert run.weights.flat.tobytes() == result.run.weights.flat.tobytes()


def test_divergence_names_round_worker_and_rate(train_blocks: Blocks, tmp_path: Path) -> None:
    config = replace(CONFIG, solver=replace(CONFIG.solver, base_lr=1e6))
    message = r"^round \d: the loss of worker [01] is (nan|inf) at learning rate 1e\+06; use a lower --lr$"
    with pytest.raises(DivergedError, match=message):
        trained(train_blocks, None, config, tmp_path / "run")
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_a_last_step_that_diverges_is_not_saved(train_blocks: Blocks, val_blocks: Blocks, tmp_path: Path) -> None:
    # Each loss is measured before its step: with one step in all, it is finite.
    config = replace(CONFIG, rounds=1, tau=1, scale=100.0, solver=SolverConfig(base_lr=1e38))
    message = r"^round 1: a weight is no finite number at learning rate 1e\+38; use a lower --lr$"
    with pytest.raises(DivergedError, match=message):
        trained(train_blocks, val_blocks, config, tmp_path / "run")
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_more_workers_than_slots(train_blocks: Blocks, sc: SparkContext, tmp_path: Path) -> None:
    message = re.escape(f"3 workers, but the master {sc.master} runs 2 tasks at a time; use fewer workers, or a master")
    with pytest.raises(ConfigError, match=f"^{message}"):
        trained(train_blocks, None, replace(CONFIG, workers=3), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_crop_above_the_side(train_blocks: Blocks) -> None:
    with pytest.raises(
        ConfigError, match=r"^crop must be from 1 to the images' side of 16 pixels, got 17; use another crop or side$"
    ):
        trained(train_blocks, None, replace(CONFIG, crop=17))


def test_a_network_of_other_outputs_than_classes(train_blocks: Blocks) -> None:
    with pytest.raises(ConfigError, match=r"scores of shape \(1, 5\), 3 classes ask for \(1, 3\)"):
        trained(train_blocks, None, replace(CONFIG, net="tests.train.networks:too_many"))


def test_a_set_without_classes(train_blocks: Blocks) -> None:
    with pytest.raises(ConfigError, match=r"the training set has no labels; name a label file \(--labels FILE\)"):
        trained(replace(train_blocks, class_names=()), None, CONFIG)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"class_names": ("a", "b", "c", "d")}, LabelError, "4 classes, the network has 3 outputs"),
        ({"side": 20}, ConfigError, "cached at a side of 20 pixels, the training set's is 16"),
    ],
)
def test_a_validation_set_that_does_not_fit_is_refused_before_any_round(
    change: dict[str, object],
    kind: type[Exception],
    message: str,
    train_blocks: Blocks,
    val_blocks: Blocks,
    tmp_path: Path,
) -> None:
    with pytest.raises(kind, match=message):
        trained(train_blocks, replace(val_blocks, **change), CONFIG, tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run(finished: Finished, train_blocks: Blocks) -> None:
    _, _, out = finished
    before = (out / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match="holds another run already"):
        trained(train_blocks, None, CONFIG, out)
    assert (out / "metrics.jsonl").read_text() == before


def test_metrics_that_cannot_be_written(train_blocks: Blocks, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def in_the_way(_: RoundMetrics) -> None:
        (out / "metrics.jsonl").unlink()
        (out / "metrics.jsonl").mkdir()

    with pytest.raises(RunError, match=rf"^{out}/metrics.jsonl: cannot be written: Is a directory$"):
        train(train_blocks, None, replace(CONFIG, rounds=2), out=out, on_round=in_the_way)


def test_nothing_stays_in_spark(sc: SparkContext, train_blocks: Blocks, val_blocks: Blocks) -> None:
    def fails(_: RoundMetrics) -> None:
        raise KeyboardInterrupt

    persistent, files = sc._jsc.getPersistentRDDs().size(), sorted(Path(sc._temp_dir).iterdir())
    config = replace(CONFIG, rounds=2, test_every=1)
    trained(train_blocks, val_blocks, config)
    with pytest.raises(KeyboardInterrupt):
        train(train_blocks, val_blocks, config, on_round=fails)
    assert sc._jsc.getPersistentRDDs().size() == persistent
    assert sorted(Path(sc._temp_dir).iterdir()) == files


@pytest.fixture
def blocks_with_bad(sc: SparkContext, tiny: TinySet, tmp_path: Path) -> Callable[[], Blocks]:
    def make() -> Blocks:
        members = {f"n01503061_{i}.JPEG": jpeg(i, 0) for i in range(4)}
        members |= {"n01503061_bad.JPEG": b"no image", "n01503061_cut.JPEG": jpeg(1, 0)[:200]}
        path = tmp_path / "ILSVRC2012_img_train.tar"
        path.write_bytes(tar_bytes({"n01503061.tar": tar_bytes(members)}))
        return cache(read_samples(sc, str(path)).shuffled(0, 2), 16, max_bad=0.5)

    return make


def test_bad_samples_of_both_sets_are_named_in_the_run(blocks_with_bad: Callable[[], Blocks], tmp_path: Path) -> None:
    train_set, val_set = blocks_with_bad(), blocks_with_bad()
    config = replace(CONFIG, workers=1, rounds=1, tau=1, batch=4)
    trained(train_set, val_set, config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "bad_samples.jsonl").read_text().splitlines()]
    names = ["n01503061_bad.JPEG", "n01503061_cut.JPEG"]
    assert sorted(line["key"].rsplit("/")[-1] for line in lines) == sorted(names * 2)
    assert all(line["reason"] and line["url"].endswith("ILSVRC2012_img_train.tar") for line in lines)
