import math

import pytest
import torch
from torch import nn

from sparknet.train.models.caffe_layers import double_rate_for_biases, gaussian, xavier, zero_bias
from sparknet.train.solver import Multipliers


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 16, 5), nn.Linear(100, 40)], ids=["conv", "linear"])
def test_gaussian(layer: nn.Conv2d | nn.Linear) -> None:
    torch.manual_seed(0)
    gaussian(layer, 0.02)
    weight = layer.weight.detach()
    assert float(weight.std()) == pytest.approx(0.02, rel=4 / math.sqrt(2 * weight.numel()))
    assert abs(float(weight.mean())) < 4 * 0.02 / math.sqrt(weight.numel())
    assert layer.bias is not None
    assert not layer.bias.any()


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 16, 5), nn.Linear(200, 40)], ids=["conv", "linear"])
def test_xavier_is_uniform_over_the_inputs_of_one_output(layer: nn.Conv2d | nn.Linear) -> None:
    torch.manual_seed(0)
    xavier(layer)
    assert layer.weight[0].numel() == 200
    bound = math.sqrt(3 / 200)
    weight = layer.weight.detach()
    assert 0.99 * bound < float(weight.max()) <= bound
    assert -bound <= float(weight.min()) < -0.99 * bound
    assert float(weight.std()) == pytest.approx(math.sqrt(1 / 200), rel=0.03)
    assert layer.bias is not None
    assert not layer.bias.any()


def test_xavier_counts_the_inputs_of_a_group_only() -> None:
    layer = nn.Conv2d(8, 16, 5, groups=2)
    xavier(layer)
    assert float(layer.weight.detach().abs().max()) == pytest.approx(math.sqrt(3 / 100), rel=0.01)


def test_layers_without_a_bias() -> None:
    layer = nn.Linear(3, 3, bias=False)
    zero_bias(layer)
    gaussian(layer, 1)
    xavier(layer)
    assert double_rate_for_biases(layer) == {}


def test_double_rate_names_biases_at_any_depth() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Conv2d(1, 1, 1)))
    assert double_rate_for_biases(module) == {"0.bias": Multipliers(2, 1), "1.0.bias": Multipliers(2, 1)}
