"""Networks of a user's own, as `tests.train.networks:plain`: each has something that training must not trip over."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from pyspark import TaskContext
from torch import nn

from sparknet.train.solver import Multipliers


def plain(classes: int, crop: int) -> nn.Module:
    """A convolution and a linear layer; other rates and no decay for the biases."""
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * ((crop - 1) // 2) ** 2, classes)
    )
    module.multipliers = {name: Multipliers(lr=2, decay=0) for name in ("0.bias", "3.bias")}  # type: ignore[assignment]
    return module


def dropout(num_classes: int, crop: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * crop * crop, 8), nn.Dropout(0.5), nn.Linear(8, num_classes))


def batchnorm(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


class Tied(nn.Module):
    """One matrix in two places."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(3, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.second(torch.relu(self.first(x.mean((2, 3))))))
        return scores


class Wide(nn.Module):
    """float64 inside."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, classes)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.norm(x.double().mean((2, 3))))
        return scores


class Half(nn.Module):
    """bfloat16 inside, float32 at its ends."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(3, classes, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(x.mean((2, 3)).bfloat16())
        return scores.float()


class Frozen(nn.Module):
    """A first layer that does not train, with multipliers for all, and one that has no part in the result."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5).requires_grad_(False)
        self.idle = nn.Linear(2, 2)
        self.last = nn.Linear(5, classes)
        self.multipliers = {"first.bias": Multipliers(lr=2), "last.bias": Multipliers(lr=2)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.first(x.mean((2, 3))))
        return scores


class Lazy(nn.Module):
    """Learns the size of its input, and fills its weights, when it first sees some."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.last = nn.LazyLinear(classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(x.flatten(1))
        return scores


class Noisy(nn.Module):
    """Draws random numbers in evaluation mode too."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(3, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(x.mean((2, 3)) + torch.rand(3))
        return scores


CONSTANT = 3


def nothing() -> nn.Module:
    return nn.Flatten()


def no_module() -> str:
    return "resnet"


def too_many(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes + 2))


def not_flat(classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, classes, 1))


def too_small() -> nn.Module:
    return nn.Conv2d(3, 3, 99)


def needs_more(classes: int, width: int) -> nn.Module:
    return nn.Linear(width, classes)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Two(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def large(classes: int) -> nn.Module:
    """Some 10 MB of weights."""
    return _wide(150_000, classes)


def forty_megabytes(classes: int) -> nn.Module:
    return _wide(625_000, classes)


def _wide(width: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, width), nn.ReLU(), nn.Linear(width, classes)
    )


# Spark's local property that tells `Mortal` when to die: {"worker": ..., "call": ..., "folder": ...}.
KILL = "sparknet.tests.kill"


class Mortal(nn.Module):
    """Kills its process, in a task's first attempt, where the job's local property says so; leaves notes of it."""

    def __init__(self, classes: int, crop: int) -> None:
        super().__init__()
        self.layers = dropout(classes, crop)
        self._task, self._calls, self._first = -1, 0, torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        context = TaskContext.get()
        order = context.getLocalProperty(KILL) if context is not None else None
        if context is not None and order:
            self._obey(context, json.loads(order))
        scores: torch.Tensor = self.layers(x)
        return scores

    def _obey(self, context: TaskContext, order: dict[str, Any]) -> None:
        if context.partitionId() != order["worker"]:
            return
        weights = torch.cat([parameter.detach().ravel() for parameter in self.parameters()])
        if context.taskAttemptId() != self._task:
            self._task, self._calls, self._first = context.taskAttemptId(), 0, weights
            self._note(context, order, "")
        self._calls += 1
        if context.attemptNumber() == 0 and self._calls == order["call"]:
            if not torch.equal(weights, self._first):
                self._note(context, order, f"-changed-by-{self._calls - 1}-steps")
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, context: TaskContext, order: dict[str, Any], what: str) -> None:
        Path(order["folder"], f"attempt-{context.attemptNumber()}{what}").write_text(str(os.getpid()))
