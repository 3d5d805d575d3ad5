"""What Caffe's layers do where torch's do otherwise: how weights are filled, how biases learn."""

from torch import nn

from sparknet.train.solver import Multipliers


def gaussian(layer: nn.Conv2d | nn.Linear, std: float) -> None:
    """Fill weights from a normal distribution of the given deviation, and the bias with zeros."""
    nn.init.normal_(layer.weight, std=std)
    zero_bias(layer)


def xavier(layer: nn.Conv2d | nn.Linear) -> None:
    """Fill weights uniformly within sqrt(3 / fan-in), Caffe's `xavier`, and the bias with zeros."""
    bound = (3 / layer.weight[0].numel()) ** 0.5
    nn.init.uniform_(layer.weight, -bound, bound)
    zero_bias(layer)


def zero_bias(layer: nn.Conv2d | nn.Linear) -> None:
    """Fill the bias with zeros, where the layer has one."""
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def double_rate_for_biases(module: nn.Module) -> dict[str, Multipliers]:
    """Multipliers of Caffe's examples: a bias learns twice as fast as a weight."""
    return {name: Multipliers(lr=2) for name, _ in module.named_parameters() if name.endswith("bias")}
