import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from sparknet.errors import ConfigError
from sparknet.train.config import SolverConfig, TrainConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "sigmoid"}, "lr-policy must be one of fixed, step, exp, inv, multistep, poly, got sigmoid"),
        ({"base_lr": 0.0}, "lr must be above 0 and finite, got 0.0"),
        ({"base_lr": -1.0}, "lr must be above 0 and finite, got -1.0"),
        ({"base_lr": math.nan}, "lr must be above 0 and finite, got nan"),
        ({"base_lr": math.inf}, "lr must be above 0 and finite, got inf"),
        ({"momentum": -0.1}, "momentum must be from 0 up to 1, got -0.1"),
        ({"momentum": 1.0}, "momentum must be from 0 up to 1, got 1.0"),
        ({"momentum": math.nan}, "momentum must be from 0 up to 1, got nan"),
        ({"weight_decay": -1e-9}, "weight-decay must be finite and not negative, got -1e-09"),
        ({"weight_decay": math.inf}, "weight-decay must be finite and not negative, got inf"),
        ({"gamma": -0.5}, "gamma must be finite and not negative, got -0.5"),
        ({"gamma": math.nan}, "gamma must be finite and not negative, got nan"),
        ({"power": -1.0}, "power must be finite and not negative, got -1.0"),
        ({"policy": "step"}, "the policy step needs a step-size of at least 1 iteration, got 0"),
        ({"policy": "step", "step_size": -3}, "the policy step needs a step-size of at least 1 iteration, got -3"),
        ({"policy": "multistep"}, r"the policy multistep needs rising step-values, got \(\)"),
        (
            {"policy": "multistep", "step_values": (5, 5)},
            r"the policy multistep needs rising step-values, got \(5, 5\)",
        ),
        (
            {"policy": "multistep", "step_values": (5, 4)},
            r"the policy multistep needs rising step-values, got \(5, 4\)",
        ),
        ({"policy": "poly"}, "the policy poly needs max-iterations of at least 1, got 0"),
    ],
    ids=str,
)
def test_solver_settings_that_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        SolverConfig(**settings)


COUNTS = ("crop", "batch", "workers", "tau", "rounds", "test_every", "test_batch", "threads")


@pytest.mark.parametrize("value", [0, -7])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_at_least_one(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^{name.replace('_', '-')} must be at least 1, got {value}$"):
        TrainConfig(net="lenet", **{name: value})  # type: ignore[arg-type]
    assert getattr(TrainConfig(net="lenet", **{name: 1}), name) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, r"seed must be from 0 up to 2\^64, got -1"),
        ({"seed": 2**64}, r"seed must be from 0 up to 2\^64, got 18446744073709551616"),
        ({"scale": 0.0}, "scale must be above 0 and finite, got 0.0"),
        ({"scale": math.nan}, "scale must be above 0 and finite, got nan"),
        ({"momentum_mode": "forget"}, "momentum-mode must be one of kept, reset, averaged, got forget"),
        ({"order": "sorted"}, "order must be one of epoch, window, replacement, global, got sorted"),
        ({"tail": "cut"}, "tail must be one of carried, kept, dropped, got cut"),
        (
            {"order": "global", "tail": "carried"},
            "the order global keeps an epoch's tail or drops it; tail must be kept or dropped, got carried",
        ),
        ({"prefetch": -1}, "prefetch must not be negative, got -1"),
        ({"device": "tpu"}, "device must be one of cpu, cuda, auto, got tpu"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        TrainConfig(net="lenet", **settings)


def test_limits_are_allowed() -> None:
    SolverConfig(momentum=0, weight_decay=0, gamma=0, power=0)
    SolverConfig(policy="step", step_size=1)
    SolverConfig(policy="multistep", step_values=(0,))
    SolverConfig(policy="poly", max_iterations=1)
    TrainConfig(net="lenet", seed=0)
    TrainConfig(net="lenet", seed=2**64 - 1)


def test_replacing_a_setting_checks_it_again() -> None:
    with pytest.raises(ConfigError, match="tau must be at least 1, got 0"):
        replace(TrainConfig(net="lenet"), tau=0)


@pytest.mark.parametrize("config", [SolverConfig(), TrainConfig(net="lenet")], ids=["solver", "train"])
def test_frozen(config: SolverConfig | TrainConfig) -> None:
    for field in fields(config):
        with pytest.raises(FrozenInstanceError):
            setattr(config, field.name, 1)


def test_a_list_of_step_values_makes_the_same_config() -> None:
    listed = SolverConfig(policy="multistep", step_values=[2, 5])  # type: ignore[arg-type]
    config = TrainConfig(net="lenet", solver=listed)
    same = TrainConfig(net="lenet", solver=SolverConfig(policy="multistep", step_values=(2, 5)))
    assert config == same
    assert hash(config) == hash(same)


def test_a_pickle_is_the_same_key_of_a_cache() -> None:
    config = TrainConfig(net="lenet", solver=SolverConfig(policy="multistep", step_values=(2, 5)))
    assert {config: "made"}[pickle.loads(pickle.dumps(config))] == "made"
    assert replace(config, seed=1) != config
