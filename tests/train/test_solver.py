from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparknet.errors import ConfigError
from sparknet.train.config import SolverConfig
from sparknet.train.solver import SGD, Multipliers, learning_rate

# Each changes the rate within 50 iterations, but for the first.
POLICIES: dict[str, SolverConfig] = {
    "fixed": SolverConfig(base_lr=0.1, momentum=0.9, weight_decay=0.01),
    "step": SolverConfig(base_lr=0.1, momentum=0.9, weight_decay=0.01, policy="step", gamma=0.3, step_size=12),
    "exp": SolverConfig(base_lr=0.1, momentum=0.9, weight_decay=0.01, policy="exp", gamma=0.95),
    "inv": SolverConfig(base_lr=0.1, momentum=0.9, weight_decay=0.01, policy="inv", gamma=0.1, power=0.75),
    "multistep": SolverConfig(
        base_lr=0.1, momentum=0.9, weight_decay=0.01, policy="multistep", gamma=0.2, step_values=(10, 15, 40)
    ),
    "poly": SolverConfig(base_lr=0.1, momentum=0.9, weight_decay=0.01, policy="poly", power=2.0, max_iterations=45),
}


def caffe_rate(config: SolverConfig, iteration: int) -> float:
    """SGDSolver::GetLearningRate, line by line from the comments of caffe.proto, lr_policy."""
    if config.policy == "fixed":  # always return base_lr
        return config.base_lr
    if config.policy == "step":  # return base_lr * gamma ^ (floor(iter / step))
        return config.base_lr * float(config.gamma ** np.floor(iteration / config.step_size))
    if config.policy == "exp":  # return base_lr * gamma ^ iter
        return config.base_lr * float(config.gamma**iteration)
    if config.policy == "inv":  # return base_lr * (1 + gamma * iter) ^ (- power)
        return config.base_lr * float((1 + config.gamma * iteration) ** (-config.power))
    if config.policy == "multistep":  # similar to step but it allows non uniform steps defined by stepvalue
        passed = 0
        while passed < len(config.step_values) and iteration >= config.step_values[passed]:
            passed += 1
        return config.base_lr * float(config.gamma**passed)
    # poly: polynomial decay, to be zero by the max_iter; return base_lr * (1 - iter/max_iter) ^ (power)
    left = 1 - min(iteration, config.max_iterations) / config.max_iterations
    return config.base_lr * float(left**config.power)


def gradients(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(50, *shape))


def start(*shape: int) -> np.ndarray:
    return np.random.default_rng(99).normal(size=shape)


@pytest.mark.parametrize("multiplier", [Multipliers(), Multipliers(lr=2, decay=0), Multipliers(0.5, 3), Multipliers(0)])
@pytest.mark.parametrize("config", POLICIES.values(), ids=list(POLICIES))
def test_fifty_iterations_are_caffes(config: SolverConfig, multiplier: Multipliers) -> None:
    # Caffe's tutorial: V <- mu V - alpha grad; W <- W + V, the decay's gradient being lambda W.
    w, v, steps = start(3, 4), np.zeros((3, 4)), gradients(0, (3, 4))
    parameter = torch.nn.Parameter(torch.tensor(w))
    other = torch.nn.Parameter(torch.zeros(7, dtype=torch.float64))
    solver = SGD({"other": other, "w": parameter}, {"w": multiplier}, config)
    for iteration, gradient in enumerate(steps):
        whole = gradient + config.weight_decay * multiplier.decay * w
        v = config.momentum * v - caffe_rate(config, iteration) * multiplier.lr * whole
        w = w + v
        parameter.grad = torch.tensor(gradient)
        solver.step(iteration)
        np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=0, atol=1e-6)
        np.testing.assert_allclose(solver.flat_velocity[7:].numpy().reshape(3, 4), -v, rtol=0, atol=1e-6)
    moved = np.abs(w - start(3, 4)).max()
    assert moved == 0 if multiplier.lr == 0 else moved > 0.1


def test_float32_stays_within_1e_6_of_caffe() -> None:
    config = POLICIES["multistep"]
    w, v, steps = start(10), np.zeros(10), gradients(1, (10,)) / 10
    parameter = torch.nn.Parameter(torch.tensor(w, dtype=torch.float32))
    solver = SGD({"w": parameter}, {}, config)
    for iteration, gradient in enumerate(steps):
        v = config.momentum * v + caffe_rate(config, iteration) * (gradient + config.weight_decay * w)
        w = w - v
        parameter.grad = torch.tensor(gradient, dtype=torch.float32)
        solver.step(iteration)
    np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-6, atol=1e-6)


def both(config: SolverConfig, iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ours, and torch's with the rate set before each step, on the same gradients."""
    ours, theirs = (torch.nn.Parameter(torch.tensor(start(5))) for _ in range(2))
    solver = SGD({"w": ours}, {}, config)
    torchs = torch.optim.SGD([theirs], lr=1, momentum=config.momentum, weight_decay=config.weight_decay)
    for iteration, gradient in enumerate(gradients(2, (5,))[:iterations]):
        ours.grad, theirs.grad = torch.tensor(gradient), torch.tensor(gradient)
        solver.step(iteration)
        torchs.param_groups[0]["lr"] = learning_rate(config, iteration)
        torchs.step()
    return ours.detach(), theirs.detach()


def test_torchs_sgd_agrees_until_the_rate_drops_and_then_no_more() -> None:
    config = POLICIES["multistep"]
    torch.testing.assert_close(*both(config, 10), rtol=0, atol=1e-12)
    ours, theirs = both(config, 12)
    # What had gathered in the velocity goes on at the old rate in Caffe, at a fifth of it in torch.
    assert float((ours - theirs).abs().max()) > 0.05


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"policy": "fixed"}, {0: 0.5, 10**6: 0.5}),
        ({"policy": "step", "gamma": 0.1, "step_size": 10}, {0: 0.5, 9: 0.5, 10: 0.05, 19: 0.05, 20: 0.005}),
        ({"policy": "step", "gamma": 0.5, "step_size": 1}, {0: 0.5, 1: 0.25, 2: 0.125}),
        ({"policy": "exp", "gamma": 0.5}, {0: 0.5, 1: 0.25, 3: 0.0625}),
        ({"policy": "inv", "gamma": 1.0, "power": 2.0}, {0: 0.5, 1: 0.125, 3: 0.03125}),
        (
            {"policy": "multistep", "gamma": 0.1, "step_values": (3, 5)},
            {0: 0.5, 2: 0.5, 3: 0.05, 4: 0.05, 5: 0.005, 99: 0.005},
        ),
        ({"policy": "multistep", "gamma": 0.1, "step_values": (0,)}, {0: 0.05, 1: 0.05}),
        (
            {"policy": "poly", "power": 1.0, "max_iterations": 10},
            {0: 0.5, 5: 0.25, 9: 0.05, 10: 0.0, 11: 0.0, 1000: 0.0},
        ),
        ({"policy": "poly", "power": 0.5, "max_iterations": 4}, {0: 0.5, 3: 0.25, 4: 0.0, 5: 0.0}),
    ],
    ids=str,
)
def test_rates_worked_out_by_hand(settings: dict[str, Any], expected: dict[int, float]) -> None:
    config = SolverConfig(base_lr=0.5, **settings)
    rates = {iteration: learning_rate(config, iteration) for iteration in expected}
    assert rates == pytest.approx(expected, rel=1e-12)
    assert all(type(rate) is float for rate in rates.values())


@given(st.sampled_from(list(POLICIES.values())), st.integers(0, 10_000))
def test_rates_never_rise_and_never_turn_negative(config: SolverConfig, iteration: int) -> None:
    now, later = learning_rate(config, iteration), learning_rate(config, iteration + 1)
    assert 0 <= later <= now <= config.base_lr
    assert now == pytest.approx(caffe_rate(config, iteration), rel=1e-9)


def test_a_parameter_without_gradient_stands_still() -> None:
    still, moving = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    solver = SGD({"still": still, "moving": moving}, {}, SolverConfig(base_lr=0.5, momentum=0.5, weight_decay=0.1))
    solver.flat_velocity.fill_(1)
    moving.grad = torch.ones(2)
    solver.step(0)
    assert still.tolist() == [1, 1]
    assert solver.flat_velocity[:2].tolist() == [1, 1]
    assert moving.tolist() == pytest.approx([1 - (0.5 + 0.5 * 1.1)] * 2)


def test_the_gradient_itself_is_left_as_it_was() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([1.0, 2.0])
    SGD({"w": parameter}, {}, SolverConfig(weight_decay=0.1)).step(0)
    assert parameter.grad.tolist() == [1, 2]


def test_a_multiplier_of_no_parameter() -> None:
    parameters = {"conv.weight": torch.nn.Parameter(torch.ones(2)), "conv.bias": torch.nn.Parameter(torch.ones(1))}
    message = r"^a multiplier names conv\.bais, which is no parameter; there are conv\.weight, conv\.bias$"
    with pytest.raises(ConfigError, match=message):
        SGD(parameters, {"conv.bais": Multipliers(lr=2)}, SolverConfig())


@pytest.mark.parametrize(
    ("kinds", "velocity"),
    [
        ((torch.float32, torch.float32), torch.float32),
        ((torch.bfloat16, torch.bfloat16), torch.float32),
        ((torch.float16, torch.float32), torch.float32),
        ((torch.float32, torch.float64), torch.float64),
    ],
    ids=str,
)
def test_velocity_is_as_wide_as_the_widest_parameter(kinds: tuple[torch.dtype, ...], velocity: torch.dtype) -> None:
    parameters = {str(i): torch.nn.Parameter(torch.ones(2, dtype=kind)) for i, kind in enumerate(kinds)}
    solver = SGD(parameters, {}, SolverConfig(base_lr=0.5, weight_decay=0))
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    solver.step(0)
    assert solver.flat_velocity.dtype == velocity
    assert [p.dtype for p in parameters.values()] == list(kinds)
    assert [p.tolist() for p in parameters.values()] == [[0.5, 0.5]] * 2
