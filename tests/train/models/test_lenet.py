import math

import pytest
import torch
from torch import nn

from sparknet.train.models import build
from sparknet.train.models.lenet import LeNet
from sparknet.train.solver import Multipliers


def lenet(classes: int = 10, crop: int = 28) -> LeNet:
    module = build("lenet", classes, crop, 0)
    assert isinstance(module, LeNet)
    return module


def test_shapes_at_28() -> None:
    shapes = {name: tuple(p.shape) for name, p in lenet().named_parameters()}
    assert shapes == {
        "conv1.weight": (20, 3, 5, 5),
        "conv1.bias": (20,),
        "conv2.weight": (50, 20, 5, 5),
        "conv2.bias": (50,),
        "ip1.weight": (500, 800),
        "ip1.bias": (500,),
        "ip2.weight": (10, 500),
        "ip2.bias": (10,),
    }


@pytest.mark.parametrize("crop", [*range(13, 34), 64])
def test_any_crop(crop: int) -> None:
    module = lenet(3, crop)
    sizes: list[int] = []
    module.pool.register_forward_hook(lambda _layer, _x, y: sizes.append(y.shape[-1]))
    assert module(torch.zeros(1, 3, crop, crop)).shape == (1, 3)
    first = math.ceil((crop - 4 - 2) / 2) + 1
    assert sizes == [first, math.ceil((first - 4 - 2) / 2) + 1]


def test_fillers_are_caffes_xavier() -> None:
    for name, layer in lenet().named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = math.sqrt(3 / layer.weight[0].numel())  # caffe: sqrt(3 / fan_in)
            largest = float(layer.weight.detach().abs().max())
            assert 0.99 * bound < largest <= bound, name
            assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.05), name
            assert layer.bias is not None
            assert not layer.bias.any(), name


def test_only_the_hidden_layer_has_a_relu() -> None:
    module = lenet()
    x = torch.rand(2, 3, 28, 28) - 0.5
    hidden = module.pool(module.conv2(module.pool(module.conv1(x)))).flatten(1)
    assert (hidden < 0).any()
    expected = module.ip2(module.ip1(hidden).clamp(min=0))
    torch.testing.assert_close(module(x), expected)


def test_biases_learn_twice_as_fast() -> None:
    assert lenet().multipliers == {f"{name}.bias": Multipliers(lr=2) for name in ("conv1", "conv2", "ip1", "ip2")}
