"""The paper's Net over any nn.Module: its weights in one flat buffer, its solver, and the step between them."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from sparknet.errors import ConfigError
from sparknet.tensor.weights import WeightCollection
from sparknet.train.config import SolverConfig
from sparknet.train.solver import SGD, Multipliers


class Net:
    """A module whose weights can be taken out and put in at once.

    Parameters and persistent buffers (BatchNorm's statistics) of the widest floating type become views of one flat
    tensor. What has another type (BatchNorm's integer counter) is copied in and out: integers are exact up to 2^24.

    Args:
        module: (n, 3, crop, crop) float32 in, (n, classes) out. Taken over: its tensors are laid out anew. An
            attribute `multipliers`, `Multipliers` by parameter name, goes to the solver; where one `channels_last` is
            true, its input has that memory format.
        solver: for `step`.
        device: where to compute.

    Raises:
        ConfigError: the module has no parameter that trains, or a multiplier names no parameter.
    """

    def __init__(self, module: nn.Module, solver: SolverConfig, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        self.device = torch.device(device)
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise ConfigError(f"{type(module).__name__} has no parameter that trains")
        tensors = _tensors(module)
        wide = any(tensor.dtype == torch.float64 for tensor in tensors.values())
        dtype = torch.float64 if wide else torch.float32
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._flat = torch.empty(sum(t.numel() for t in tensors.values()), dtype=dtype, device=device)
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        views = torch.split(self._flat, [tensor.numel() for tensor in tensors.values()])
        for tensor, part in zip(tensors.values(), views, strict=True):
            view = part.view(tensor.shape)
            view.copy_(tensor.detach())
            if tensor.dtype == dtype:
                tensor.data = view
            else:
                self._copied.append((tensor, view))
        multipliers: Mapping[str, Multipliers] = getattr(module, "multipliers", {})
        frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        used = {name: multiplier for name, multiplier in multipliers.items() if name not in frozen}
        self.channels_last = bool(getattr(module, "channels_last", False))
        self.solver = SGD(trainable, used, solver)

    def get_weights(self) -> WeightCollection:
        """Take the weights out: parameters and persistent buffers by name.

        Returns:
            On a CPU a view, without copy, that `step` changes; elsewhere a copy.
        """
        for tensor, view in self._copied:
            view.copy_(tensor.detach())
        return WeightCollection(self._shapes, self._flat.cpu().numpy())

    def set_weights(self, flat: np.ndarray) -> None:
        """Put weights in, from the flat buffer of a collection like that of `get_weights`; they are copied.

        Raises:
            ValueError: the buffer has another length.
        """
        _load(self._flat, flat)
        for tensor, view in self._copied:
            tensor.data.copy_(view if tensor.is_floating_point() else view.round())

    def get_momentum(self) -> np.ndarray:
        """Copy the solver's velocity: one element for each of the parameters that train."""
        return self.solver.flat_velocity.cpu().numpy().copy()

    def set_momentum(self, flat: np.ndarray | None) -> None:
        """Put a velocity in, which is copied; zeros where None.

        Raises:
            ValueError: the buffer has another length.
        """
        if flat is None:
            self.solver.flat_velocity.zero_()
        else:
            _load(self.solver.flat_velocity, flat)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute class scores in evaluation mode, without gradients.

        Args:
            x: (n, 3, crop, crop) float32, on the device.

        Returns:
            (n, classes).
        """
        self.module.eval()
        with torch.no_grad():
            scores: torch.Tensor = self.module(x)
        return scores

    def step(self, x: torch.Tensor, labels: torch.Tensor, iteration: int) -> torch.Tensor:
        """Take one iteration of SGD on the mean softmax loss of a minibatch.

        Args:
            x: (n, 3, crop, crop) float32, on the device.
            labels: (n,) int64, on the device.
            iteration: since the start of training, for the learning rate.

        Returns:
            The loss before the step, a scalar on the device.
        """
        self.module.train()
        self.module.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.module(x), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.solver.step(iteration)
        return loss.detach()


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Everything that a state_dict saves, each tensor once, also where two modules share it."""
    unique: dict[int, tuple[str, torch.Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            unique.setdefault(id(value), (name, value))
    return dict(unique.values())


def _load(target: torch.Tensor, flat: np.ndarray) -> None:
    if flat.shape != tuple(target.shape):
        raise ValueError(f"{target.numel()} elements expected, got an array of shape {flat.shape}")
    target.copy_(torch.from_numpy(flat))
