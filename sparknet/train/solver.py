"""SGD as Caffe defines it, and its learning-rate policies."""

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import torch

from sparknet.errors import ConfigError
from sparknet.train.config import SolverConfig


class Multipliers(NamedTuple):
    """Of one parameter: what its learning rate and its weight decay are multiplied by."""

    lr: float = 1.0
    decay: float = 1.0


def learning_rate(config: SolverConfig, iteration: int) -> float:
    """Follow Caffe's `lr_policy`.

    With t the iteration: fixed: base; step: base * gamma^floor(t / step_size); exp: base * gamma^t;
    inv: base * (1 + gamma * t)^-power; multistep: base * gamma^(number of step_values that are at most t);
    poly: base * (1 - t / max_iterations)^power, and 0 from there on.

    Args:
        config: base rate, policy, and its constants.
        iteration: since the start of training, from 0.
    """
    base, gamma, t = config.base_lr, config.gamma, iteration
    match config.policy:
        case "fixed":
            return base
        case "step":
            return float(base * gamma ** (t // config.step_size))
        case "exp":
            return float(base * gamma**t)
        case "inv":
            return float(base * (1 + gamma * t) ** -config.power)
        case "multistep":
            return float(base * gamma ** sum(value <= t for value in config.step_values))
        case "poly":
            return float(base * max(0.0, 1 - t / config.max_iterations) ** config.power)


class SGD:
    """Stochastic gradient descent with momentum, in Caffe's form.

    v <- momentum * v + rate * lr * (gradient + weight_decay * decay * w);  w <- w - v, where lr and decay are the
    parameter's multipliers. The rate is inside the velocity: when it drops, what has gathered there keeps its size,
    unlike with torch.optim.SGD.

    Args:
        parameters: by name; changed in place by `step`.
        multipliers: by name; 1 and 1 where a parameter has none.
        config: rate, momentum, decay.

    Raises:
        ConfigError: a multiplier names no parameter.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        multipliers: Mapping[str, Multipliers],
        config: SolverConfig,
    ) -> None:
        for name in multipliers:
            if name not in parameters:
                raise ConfigError(
                    f"a multiplier names {name}, which is no parameter; there are {', '.join(parameters)}"
                )
        self.config = config
        # float32 at least: in half precision small steps round away, and numpy knows no bfloat16.
        dtype = reduce(torch.promote_types, (p.dtype for p in parameters.values()), torch.float32)
        device = next(iter(parameters.values())).device
        self.flat_velocity = torch.zeros(sum(p.numel() for p in parameters.values()), dtype=dtype, device=device)
        velocities = torch.split(self.flat_velocity, [p.numel() for p in parameters.values()])
        self._slots = [
            (parameter, velocity.view(parameter.shape), multipliers.get(name, Multipliers()))
            for (name, parameter), velocity in zip(parameters.items(), velocities, strict=True)
        ]

    @torch.no_grad()
    def step(self, iteration: int) -> None:
        """Update every parameter from its gradient. A parameter without one stands still.

        Args:
            iteration: since the start of training, for the rate.
        """
        rate = learning_rate(self.config, iteration)
        for parameter, velocity, multiplier in self._slots:
            if parameter.grad is None:
                continue
            gradient, decay = parameter.grad, self.config.weight_decay * multiplier.decay
            if decay:
                gradient = gradient.add(parameter, alpha=decay)
            velocity.mul_(self.config.momentum).add_(gradient, alpha=rate * multiplier.lr)
            parameter.sub_(velocity)
