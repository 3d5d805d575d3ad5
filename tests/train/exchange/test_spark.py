from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException

from sparknet.errors import ConfigError
from sparknet.loaders.block import Block
from sparknet.loaders.blocks import Blocks
from sparknet.scratch import local_path
from sparknet.tensor.weights import WeightCollection
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.exchange import Round, WorkerReport
from sparknet.train.exchange.spark import _PIECE_BYTES, SparkExchange
from tests.train.serial import fresh, next_round, plain_sgd, start

# Shares of 31 and 32 images: epochs end in mid-round. The rate drops within round 3.
CONFIG = TrainConfig(
    net="tests.train.networks:plain",
    crop=12,
    batch=7,
    workers=2,
    tau=3,
    rounds=5,
    mirror=True,
    scale=1 / 64,
    solver=SolverConfig(
        base_lr=0.05, momentum=0.9, weight_decay=0.01, policy="multistep", gamma=0.1, step_values=(7, 13)
    ),
)


@pytest.fixture(scope="module")
def mean(train_blocks: Blocks) -> np.ndarray:
    return train_blocks.mean_image()


@pytest.fixture(scope="module")
def colour(train_blocks: Blocks) -> np.ndarray:
    return train_blocks.colour_components()


@pytest.fixture(scope="module")
def shares(train_blocks: Blocks) -> list[list[Block]]:
    """Of two workers, for the serial side."""
    return shares_of(train_blocks, 2)


@pytest.fixture(scope="module")
def executor_folder(sc: SparkContext) -> Path:
    """Where the local executor keeps its files."""
    return Path(sc.parallelize([0], 1).map(lambda _: str(local_path("x").parent)).first())


@pytest.fixture
def exchange_of(
    train_blocks: Blocks, mean: np.ndarray, colour: np.ndarray
) -> Iterator[Callable[[TrainConfig], SparkExchange]]:
    made = []

    def make(config: TrainConfig) -> SparkExchange:
        made.append(SparkExchange(train_blocks, config, mean_for(config, mean), colour))
        return made[-1]

    yield make
    for exchange in made:
        exchange.close()


def mean_for(config: TrainConfig, mean: np.ndarray) -> np.ndarray:
    return mean if config.mean == "image" else mean.mean(axis=(0, 1))


def shares_of(blocks: Blocks, workers: int) -> list[list[Block]]:
    shares = blocks.shares(workers)
    try:
        return shares.collect()
    finally:
        shares.unpersist()


def rounds_of(exchange: SparkExchange, config: TrainConfig) -> Iterator[Round]:
    weights, momentum = fresh(config).get_weights().copy(), tuple[np.ndarray, ...]()
    for number in range(config.rounds):
        done = exchange.train(number, weights, momentum, collect_momentum=False)
        weights, momentum = done.weights, done.momentum
        yield done


@pytest.mark.parametrize(
    "change",
    [
        {"momentum_mode": "kept"},
        {"momentum_mode": "reset"},
        {"momentum_mode": "averaged"},
        {"momentum_mode": "kept", "net": "tests.train.networks:dropout"},
        {"momentum_mode": "averaged", "net": "tests.train.networks:batchnorm"},
        {"momentum_mode": "averaged", "net": "tests.train.networks:Wide"},
        {"momentum_mode": "averaged", "net": "tests.train.networks:Frozen"},
        {"momentum_mode": "kept", "resized_crop": True, "mean": "channel", "bgr": True, "pca_colour": 0.1},
        {"momentum_mode": "kept", "net": "cifar10_quick", "crop": 16, "mirror": False, "scale": 1.0},
    ],
    ids=lambda change: " ".join(str(value) for value in change.values()),
)
def test_two_workers_through_spark_are_two_workers_in_one_process(
    change: dict[str, Any],
    executor_folder: Path,
    shares: list[list[Block]],
    mean: np.ndarray,
    colour: np.ndarray,
    exchange_of: Callable[[TrainConfig], SparkExchange],
) -> None:
    config = replace(CONFIG, **change)
    exchange, state = exchange_of(config), start(config)
    seen = {state.weights.tobytes()}
    for number, done in enumerate(rounds_of(exchange, config)):
        state = next_round(state, number, shares, config, mean_for(config, mean), colour)
        assert done.weights.flat.dtype == state.weights.dtype
        np.testing.assert_array_equal(done.weights.flat, state.weights)
        if config.momentum_mode == "averaged":
            [momentum] = done.momentum
            np.testing.assert_array_equal(momentum, state.momenta[0])
        else:
            assert done.momentum == ()
        assert [report.samples for report in done.reports] == [21, 21]
        assert not any(report.momentum_lost for report in done.reports)
        seen.add(done.weights.flat.tobytes())
    assert len(seen) == 6, "every round moved the weights"
    # Kept momentum lies on disk for the round that was and the one to come; the other modes leave nothing there.
    rounds = (4, 5) if config.momentum_mode == "kept" else ()
    assert {path.name for path in executor_folder.glob(f"{exchange._run_id}*")} == {
        f"{exchange._run_id}-momentum-{worker}-{number}.npy" for worker in (0, 1) for number in rounds
    }


def test_the_shares_of_two_workers_hold_every_image_once(shares: list[list[Block]], train_blocks: Blocks) -> None:
    names = sorted(block.name for share in shares for block in share)
    assert names == sorted(block.name for block in train_blocks.handles)
    assert len(set(names)) == len(names) == 7
    assert [sum(map(len, share)) for share in shares] == [sum(train_blocks.counts[k::2]) for k in (0, 1)]


def test_the_modes_of_momentum_differ_from_the_second_round_on(shares: list[list[Block]], mean: np.ndarray) -> None:
    after: list[list[bytes]] = []
    for mode in ("kept", "reset", "averaged"):
        config = replace(CONFIG, momentum_mode=mode)
        first = next_round(start(config), 0, shares, config, mean)
        after.append([state.weights.tobytes() for state in (first, next_round(first, 1, shares, config, mean))])
    assert len({rounds[0] for rounds in after}) == 1
    assert len({rounds[1] for rounds in after}) == 3


def test_kept_momentum_comes_back_where_asked_and_goes_out_again(
    shares: list[list[Block]],
    mean: np.ndarray,
    executor_folder: Path,
    exchange_of: Callable[[TrainConfig], SparkExchange],
) -> None:
    exchange, state = exchange_of(CONFIG), start(CONFIG)
    weights = fresh(CONFIG).get_weights().copy()
    for number in range(2):
        done = exchange.train(number, weights, (), collect_momentum=number == 1)
        state, weights = next_round(state, number, shares, CONFIG, mean), done.weights
    assert len(done.momentum) == 2
    for mine, theirs in zip(done.momentum, state.momenta, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not np.array_equal(*done.momentum)

    # Another exchange is another run to the executors: none of the first one's files is there for it.
    again = exchange_of(CONFIG)
    resumed = again.train(2, weights, done.momentum, collect_momentum=False)
    state = next_round(state, 2, shares, CONFIG, mean)
    np.testing.assert_array_equal(resumed.weights.flat, state.weights)
    assert [report.momentum_lost for report in resumed.reports] == [False, False]
    # From then on each worker has its own.
    resumed = again.train(3, resumed.weights, (), collect_momentum=True)
    state = next_round(state, 3, shares, CONFIG, mean)
    np.testing.assert_array_equal(resumed.weights.flat, state.weights)
    assert [report.momentum_lost for report in resumed.reports] == [False, False]
    np.testing.assert_array_equal(resumed.momentum, state.momenta)
    assert len(list(executor_folder.glob(f"{again._run_id}-momentum-*"))) == 4


@pytest.mark.parametrize(("mode", "count"), [("reset", 0), ("averaged", 1)])
def test_the_other_modes_bring_back_no_more_where_asked(
    mode: Any, count: int, exchange_of: Callable[[TrainConfig], SparkExchange]
) -> None:
    config = replace(CONFIG, momentum_mode=mode)
    done = exchange_of(config).train(0, fresh(config).get_weights().copy(), (), collect_momentum=True)
    assert [len(momentum) for momentum in done.momentum] == [len(fresh(config).get_momentum())] * count


@pytest.mark.parametrize("net", ["tests.train.networks:plain", "cifar10_quick", "lenet"])
def test_one_worker_is_plain_sgd(
    net: str, train_blocks: Blocks, mean: np.ndarray, exchange_of: Callable[[TrainConfig], SparkExchange]
) -> None:
    config = replace(CONFIG, workers=1, net=net, crop=14)
    [blocks] = shares_of(train_blocks, 1)
    expected = plain_sgd(blocks, config, mean)
    assert len(expected) == 5
    for done, weights in zip(rounds_of(exchange_of(config), config), expected, strict=True):
        np.testing.assert_array_equal(done.weights.flat, weights.astype(np.float32))


def test_the_same_round_again_gives_the_same_bits(exchange_of: Callable[[TrainConfig], SparkExchange]) -> None:
    config = replace(CONFIG, net="tests.train.networks:dropout", rounds=3)
    exchange = exchange_of(config)
    first, second, third = rounds_of(exchange, config)
    again = exchange.train(2, second.weights, second.momentum, collect_momentum=False)
    assert again.weights.flat.tobytes() == third.weights.flat.tobytes()
    assert [report.loss for report in again.reports] == [report.loss for report in third.reports]
    assert first.weights.flat.tobytes() != third.weights.flat.tobytes()


def test_lost_momentum_is_reported_and_begins_from_zero(
    executor_folder: Path,
    shares: list[list[Block]],
    mean: np.ndarray,
    exchange_of: Callable[[TrainConfig], SparkExchange],
) -> None:
    exchange, state = exchange_of(CONFIG), start(CONFIG)
    weights = fresh(CONFIG).get_weights().copy()
    for number in range(2):
        weights = exchange.train(number, weights, (), collect_momentum=False).weights
        state = next_round(state, number, shares, CONFIG, mean)
    [file] = executor_folder.glob(f"{exchange._run_id}-momentum-1-2.npy")
    np.testing.assert_array_equal(np.load(file), state.momenta[1])
    file.unlink()

    done = exchange.train(2, weights, (), collect_momentum=False)
    assert [report.momentum_lost for report in done.reports] == [False, True]
    intact = next_round(state, 2, shares, CONFIG, mean).weights
    state.momenta[1] = None
    state = next_round(state, 2, shares, CONFIG, mean)
    np.testing.assert_array_equal(done.weights.flat, state.weights)
    assert not np.array_equal(done.weights.flat, intact)

    done = exchange.train(3, done.weights, (), collect_momentum=False)
    assert [report.momentum_lost for report in done.reports] == [False, False]
    np.testing.assert_array_equal(done.weights.flat, next_round(state, 3, shares, CONFIG, mean).weights)


class Prepared:
    """Stands for the shares of workers whose results, or whose failure, are known."""

    def __init__(self, sc: SparkContext, results: list[WorkerReport | bytes] | PySparkException) -> None:
        self.context, self._results = sc, results

    def mapPartitionsWithIndex(self, _task: object) -> "Prepared":  # noqa: N802
        return self

    def collect(self) -> list[WorkerReport | bytes]:
        if isinstance(self._results, PySparkException):
            raise self._results
        return self._results

    def unpersist(self) -> None: ...


def report(samples: int) -> WorkerReport:
    return WorkerReport(samples=samples, loss=1.0, data_s=0.1, compute_s=0.2, momentum_lost=False)


def pieces(*arrays: list[float], size: int) -> list[bytes]:
    data = np.concatenate([np.array(array, np.float32) for array in arrays]).tobytes()
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1000, 8, 5], ids=["one piece", "whole elements", "split elements"])
def test_each_worker_counts_by_its_samples(
    size: int, sc: SparkContext, exchange_of: Callable[[TrainConfig], SparkExchange]
) -> None:
    exchange = exchange_of(replace(CONFIG, momentum_mode="averaged"))
    exchange.close()
    results: list[WorkerReport | bytes] = []
    results += [report(30), *pieces([4, 8, 0], [1, 0], size=size)]
    results += [report(10), *pieces([0, 0, 4], [1, 4], size=size)]
    exchange._shares = Prepared(sc, results)  # type: ignore[assignment]
    done = exchange.train(0, WeightCollection({"w": (3,)}), (np.zeros(2, np.float32),), collect_momentum=False)
    assert done.weights["w"].tolist() == [3, 6, 1]
    [momentum] = done.momentum
    assert momentum.tolist() == [1, 1]
    assert [item.samples for item in done.reports] == [30, 10]


def test_weights_of_several_pieces_come_together_again(
    shares: list[list[Block]], mean: np.ndarray, exchange_of: Callable[[TrainConfig], SparkExchange]
) -> None:
    config = replace(CONFIG, net="tests.train.networks:large", tau=1, batch=1, rounds=1)
    [done] = rounds_of(exchange_of(config), config)
    assert done.weights.flat.nbytes > _PIECE_BYTES
    state = next_round(start(config), 0, shares, config, mean)
    np.testing.assert_array_equal(done.weights.flat, state.weights)


def test_nothing_is_left_behind_in_spark(sc: SparkContext, train_blocks: Blocks, mean: np.ndarray) -> None:
    persistent = sc._jsc.getPersistentRDDs().size()
    broadcasts = sorted(Path(sc._temp_dir).iterdir())
    exchange = SparkExchange(train_blocks, CONFIG, mean)
    for done in rounds_of(exchange, CONFIG):
        exchange.evaluate(train_blocks, done.weights)
    assert sc._jsc.getPersistentRDDs().size() == persistent
    exchange.close()
    assert sc._jsc.getPersistentRDDs().size() == persistent
    assert sorted(Path(sc._temp_dir).iterdir()) == broadcasts


def test_a_failed_round_leaves_no_broadcast_behind(
    sc: SparkContext, exchange_of: Callable[[TrainConfig], SparkExchange]
) -> None:
    exchange = exchange_of(CONFIG)
    exchange.close()
    exchange._shares = Prepared(sc, PySparkException("a worker is lost"))  # type: ignore[assignment]
    broadcasts = sorted(Path(sc._temp_dir).iterdir())
    with pytest.raises(PySparkException, match="a worker is lost"):
        exchange.train(0, WeightCollection({"w": (3,)}), (), collect_momentum=False)
    assert sorted(Path(sc._temp_dir).iterdir()) == broadcasts


def test_more_workers_than_blocks(train_blocks: Blocks, mean: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="8 workers, but only 7 would get any of the 63 samples; use fewer workers"):
        SparkExchange(train_blocks, replace(CONFIG, workers=8), mean)


def test_the_score_of_an_exchange_is_that_of_its_weights(
    train_blocks: Blocks, exchange_of: Callable[[TrainConfig], SparkExchange]
) -> None:
    config = replace(CONFIG, rounds=1)
    exchange = exchange_of(config)
    [done] = rounds_of(exchange, config)
    constant = done.weights.with_flat(np.zeros_like(done.weights.flat))
    constant["3.bias"][:] = [0, 5, 1]
    scores = exchange.evaluate(train_blocks, constant)
    assert (scores.samples, scores.correct, scores.correct5) == (63, 21, 63)
