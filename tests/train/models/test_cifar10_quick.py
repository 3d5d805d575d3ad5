import math

import numpy as np
import pytest
import torch
from torch import nn

from sparknet.train.models import build
from sparknet.train.models.cifar10_quick import Cifar10Quick
from sparknet.train.solver import Multipliers


def quick(classes: int = 10, crop: int = 32, seed: int = 0) -> Cifar10Quick:
    module = build("cifar10_quick", classes, crop, seed)
    assert isinstance(module, Cifar10Quick)
    return module


def outputs(module: nn.Module, crop: int) -> list[tuple[int, ...]]:
    """Shapes of what the pooling and linear layers give, in order, for one image."""
    shapes: list[tuple[int, ...]] = []
    for layer in module.modules():
        if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d | nn.Linear):
            layer.register_forward_hook(lambda _layer, _x, y: shapes.append(tuple(y.shape[1:])))
    module(torch.zeros(1, 3, crop, crop))
    return shapes


def test_parameters() -> None:
    shapes = {name: tuple(p.shape) for name, p in quick().named_parameters()}
    assert shapes == {
        "conv1.weight": (32, 3, 5, 5),
        "conv1.bias": (32,),
        "conv2.weight": (32, 32, 5, 5),
        "conv2.bias": (32,),
        "conv3.weight": (64, 32, 5, 5),
        "conv3.bias": (64,),
        "ip1.weight": (64, 1024),
        "ip1.bias": (64,),
        "ip2.weight": (10, 64),
        "ip2.bias": (10,),
    }
    assert sum(math.prod(shape) for shape in shapes.values()) == 145_578


def test_sizes_after_each_layer_at_32() -> None:
    assert outputs(quick(), 32) == [(32, 16, 16), (32, 8, 8), (64, 4, 4), (64,), (10,)]


def caffe_size(size: int) -> int:
    """pooling_layer.cpp: ceil((height + 2 * pad - kernel) / stride) + 1, for kernel 3, stride 2, no padding."""
    return math.ceil((size - 3) / 2) + 1


@pytest.mark.parametrize("crop", [8, 9, 13, 27, 28, 29, 30, 31, 33, 47, 64])
def test_sizes_are_caffes_at_any_crop(crop: int) -> None:
    one = caffe_size(crop)
    two = caffe_size(one)
    three = caffe_size(two)
    assert outputs(quick(3, crop), crop) == [(32, one, one), (32, two, two), (64, three, three), (64,), (3,)]


def caffe_pool(x: np.ndarray, kind: str) -> np.ndarray:
    """Caffe's loops over one channel: windows of 3 at a stride of 2, cut off at the edge."""
    size = caffe_size(len(x))
    out = np.empty((size, size))
    for row in range(size):
        for column in range(size):
            window = x[2 * row : min(2 * row + 3, len(x)), 2 * column : min(2 * column + 3, len(x))]
            out[row, column] = window.max() if kind == "max" else window.sum() / window.size
    return out


@pytest.mark.parametrize("size", [3, 4, 5, 8, 11, 16])
def test_pooling_is_caffes_also_in_windows_over_the_edge(size: int) -> None:
    module = quick()
    x = np.random.default_rng(0).normal(size=(size, size)) - 5  # zeros from outside would show
    image = torch.tensor(x)[None, None]
    np.testing.assert_allclose(module.max_pool(image)[0, 0].numpy(), caffe_pool(x, "max"))
    np.testing.assert_allclose(module.average_pool(image)[0, 0].numpy(), caffe_pool(x, "average"))


@pytest.mark.parametrize("crop", [32, 29])
def test_forward_is_the_published_order_of_layers(crop: int) -> None:
    module = quick(crop=crop).double()
    x = np.random.default_rng(1).normal(size=(2, 3, crop, crop)) * 100
    weights = {name: p.detach() for name, p in module.named_parameters()}

    def convolve(x: np.ndarray, name: str) -> np.ndarray:
        layer = (weights[f"{name}.weight"], weights[f"{name}.bias"])
        return nn.functional.conv2d(torch.tensor(x), *layer, padding=2).numpy()

    def pool(x: np.ndarray, kind: str) -> np.ndarray:
        return np.array([[caffe_pool(channel, kind) for channel in image] for image in x])

    x1 = np.maximum(pool(convolve(x, "conv1"), "max"), 0)
    x2 = pool(np.maximum(convolve(x1, "conv2"), 0), "average")
    x3 = pool(np.maximum(convolve(x2, "conv3"), 0), "average")
    hidden = x3.reshape(2, -1) @ weights["ip1.weight"].numpy().T + weights["ip1.bias"].numpy()
    expected = hidden @ weights["ip2.weight"].numpy().T + weights["ip2.bias"].numpy()
    assert np.abs(expected).max() > 1e-6
    np.testing.assert_allclose(module(torch.tensor(x)).detach().numpy(), expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "std"), [("conv1", 1e-4), ("conv2", 0.01), ("conv3", 0.01), ("ip1", 0.1), ("ip2", 0.1)]
)
def test_fillers(name: str, std: float) -> None:
    weight = np.concatenate([quick(seed=seed).get_parameter(f"{name}.weight").detach().ravel() for seed in range(5)])
    # Four standard errors of a sample's deviation and mean.
    assert weight.std() == pytest.approx(std, rel=4 / math.sqrt(2 * weight.size))
    assert abs(weight.mean()) < 4 * std / math.sqrt(weight.size)
    assert np.abs(weight).max() > 2.5 * std  # gaussian: a uniform one ends at 1.73
    assert not quick().get_parameter(f"{name}.bias").any()


def test_biases_learn_twice_as_fast() -> None:
    module = quick()
    assert module.multipliers == {
        f"{name}.bias": Multipliers(lr=2, decay=1) for name in ("conv1", "conv2", "conv3", "ip1", "ip2")
    }
