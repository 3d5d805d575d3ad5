import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sparknet.errors import ConfigError
from sparknet.loaders.convert import ToTensor
from sparknet.loaders.minibatch import Share
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.net import Net
from sparknet.train.worker import Outcome, replica, train_round
from tests.train.serial import fresh, noise_block

CONFIG = TrainConfig(
    net="tests.train.networks:plain",
    crop=12,
    batch=5,
    tau=4,
    mirror=True,
    scale=1 / 64,
    solver=SolverConfig(base_lr=0.05, momentum=0.9, weight_decay=0.01),
)
NETS = ["plain", "dropout", "batchnorm", "Tied", "Wide", "Frozen"]


@pytest.fixture
def share(tmp_path: Path) -> Share:
    return Share([noise_block(tmp_path, 7, seed=1), noise_block(tmp_path, 6, seed=2)], seed=0, number=1)


@pytest.fixture
def mean() -> np.ndarray:
    return np.random.default_rng(5).uniform(100, 150, (16, 16, 3)).astype(np.float32)


def bits(outcome: Outcome) -> tuple[bytes, bytes, int, float]:
    return outcome.weights.tobytes(), outcome.momentum.tobytes(), outcome.samples, outcome.loss


@pytest.mark.parametrize("net_name", NETS)
def test_the_same_arguments_give_the_same_bits_whatever_the_net_held(
    net_name: str, share: Share, mean: np.ndarray
) -> None:
    config = replace(CONFIG, net=f"tests.train.networks:{net_name}")
    weights = fresh(config).get_weights().flat.copy()
    momentum = fresh(config).get_momentum() + np.float32(0.01)
    first = bits(train_round(fresh(config), share, weights, momentum, 2, config, mean))

    used = fresh(replace(config, seed=8))
    train_round(used, share, weights + 1, None, 7, config, None)
    used.module.eval()
    torch.manual_seed(77)
    assert bits(train_round(used, share, weights, momentum, 2, config, mean)) == first
    assert bits(train_round(used, share, weights, momentum, 2, config, mean)) == first


@pytest.mark.parametrize("net_name", ["plain", "batchnorm"])
def test_what_goes_in_is_left_as_it_was(net_name: str, share: Share, mean: np.ndarray) -> None:
    config = replace(CONFIG, net=f"tests.train.networks:{net_name}")
    weights = fresh(config).get_weights().flat.copy()
    momentum = np.full_like(fresh(config).get_momentum(), 0.01)
    given = [weights, momentum, mean, share.labels]
    before = [array.copy() for array in given]
    outcome = train_round(fresh(config), share, weights, momentum, 0, config, mean)
    for array, kept in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, kept)
    assert not np.array_equal(outcome.weights, weights)
    assert not np.shares_memory(outcome.weights, weights)


def test_no_momentum_is_zero_momentum(share: Share, mean: np.ndarray) -> None:
    net = fresh(CONFIG)
    weights = net.get_weights().flat.copy()
    net.set_momentum(net.get_momentum() + 1)
    without = bits(train_round(net, share, weights, None, 0, CONFIG, mean))
    zeros = np.zeros_like(net.get_momentum())
    assert bits(train_round(fresh(CONFIG), share, weights, zeros, 0, CONFIG, mean)) == without
    assert bits(train_round(fresh(CONFIG), share, weights, zeros + 1, 0, CONFIG, mean)) != without


def test_round_worker_and_seed_each_decide_the_dropout(tmp_path: Path) -> None:
    # Of one image there is one minibatch: only the dropout can differ.
    block = noise_block(tmp_path, 1, side=12)
    config = replace(CONFIG, net="tests.train.networks:dropout", mirror=False, tau=1)
    weights = fresh(config).get_weights().flat.copy()

    def run(worker: int = 0, number: int = 0, seed: int = 0) -> bytes:
        share = Share([block], seed=seed, number=worker)
        return train_round(
            fresh(config), share, weights, None, number, replace(config, seed=seed), None
        ).weights.tobytes()

    assert run() == run()
    assert len({run(), run(worker=1), run(number=1), run(seed=1)}) == 4


def test_a_round_is_the_steps_of_a_net_on_the_minibatches_of_its_iterations(share: Share, mean: np.ndarray) -> None:
    step = SolverConfig(base_lr=0.05, momentum=0.5, weight_decay=0.01, policy="step", gamma=0.1, step_size=14)
    config = replace(CONFIG, solver=step)
    net = fresh(config)
    weights = net.get_weights().flat.copy()
    losses, images = [], 0
    # Round 3, the fourth, has iterations 12 to 15: the rate drops in its middle.
    for i, batch in enumerate(share.minibatches(12, 4, batch=5, augmentation=CONFIG.augmentation)):
        x = ToTensor(mean, config.scale)(batch)
        losses.append(float(net.step(x, torch.from_numpy(batch.labels), 12 + i)))
        images += len(x)
    outcome = train_round(fresh(config), share, weights, None, 3, config, mean)
    assert outcome.weights.tobytes() == net.get_weights().flat.tobytes()
    assert outcome.samples == images == 20
    assert outcome.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert outcome.data_s > 0
    assert outcome.compute_s > 0


def test_the_rate_follows_the_iteration_since_the_start_of_training(share: Share) -> None:
    # No momentum, no decay, weights of zero: the first step's length is the rate times the gradient's.
    step = SolverConfig(base_lr=1.0, momentum=0, weight_decay=0, policy="step", gamma=0.5, step_size=3)
    config = replace(CONFIG, tau=1, solver=step)
    fixed = replace(config, solver=SolverConfig(base_lr=1.0, momentum=0, weight_decay=0))
    weights = np.zeros_like(fresh(config).get_weights().flat)
    for number, factor in {0: 1, 2: 1, 3: 0.5, 5: 0.5, 6: 0.25}.items():
        moved = train_round(fresh(config), share, weights, None, number, config, None).weights
        whole = train_round(fresh(fixed), share, weights, None, number, fixed, None).weights
        assert np.abs(whole).max() > 0
        np.testing.assert_allclose(moved, whole * factor, rtol=1e-6)


def test_a_share_smaller_than_a_batch_comes_round_again(tmp_path: Path) -> None:
    share = Share([noise_block(tmp_path, 2)], seed=0, number=0)
    outcome = train_round(fresh(CONFIG), share, fresh(CONFIG).get_weights().flat, None, 0, CONFIG, None)
    assert outcome.samples == 20
    assert np.isfinite(outcome.weights).all()


def test_threads_are_those_of_the_configuration(share: Share) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            config = replace(CONFIG, threads=threads)
            train_round(fresh(config), share, fresh(config).get_weights().flat, None, 0, config, None)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_what_is_prefetched_does_not_change_a_bit(tmp_path: Path, ahead: int) -> None:
    share = Share([noise_block(tmp_path, 23)], 1, 0)
    mean = np.random.default_rng(0).uniform(0, 255, (16, 16, 3)).astype(np.float32)
    found = []
    for config in (CONFIG, replace(CONFIG, prefetch=ahead)):
        net = fresh(config)
        outcome = train_round(net, share, net.get_weights().flat.copy(), None, 2, config, mean)
        found.append((outcome.weights.tobytes(), outcome.momentum.tobytes(), outcome.loss, outcome.samples))
    assert found[0] == found[1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_a_process_makes_the_replica_of_a_run_once() -> None:
    replica.cache_clear()
    config = replace(CONFIG, seed=4)
    net = replica(config, 3)
    assert replica(replace(CONFIG, seed=4), 3) is net
    assert replica(config, 4) is not net
    expected = Net(nn.Sequential(*fresh(config).module.children()), config.solver)
    assert replica(config, 3).get_weights().allclose(expected.get_weights(), rtol=0, atol=0)
    replica.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="device cuda: torch finds no CUDA device in the worker; use --device cpu"):
        replica(replace(CONFIG, device="cuda"), 3)
    assert replica(replace(CONFIG, device="auto"), 3).device == torch.device("cpu")
    replica.cache_clear()
