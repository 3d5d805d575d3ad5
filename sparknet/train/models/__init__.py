"""The networks that come with SparkNet, by name, and those of one's own by `module:function`."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import nn

from sparknet.errors import ConfigError
from sparknet.train.config import TrainConfig
from sparknet.train.models import cifar10_quick, lenet

# What images are resized to for a network of one's own, as the paper does it for ImageNet.
SIDE = 256


class Network(NamedTuple):
    """A network that comes with SparkNet.

    Attributes:
        factory: called with the number of classes and the crop in pixels.
        published: the settings that its authors published.
        side: height and width that they resized images to, pixels.
    """

    factory: Callable[[int, int], nn.Module]
    published: TrainConfig
    side: int


NETWORKS: Mapping[str, Network] = {
    "cifar10_quick": Network(cifar10_quick.Cifar10Quick, cifar10_quick.PUBLISHED, side=32),
    "lenet": Network(lenet.LeNet, lenet.PUBLISHED, side=28),
}


def published(net: str) -> TrainConfig:
    """Look up a network's published settings; general ones for a network of one's own.

    Raises:
        ConfigError: no network of that name.
    """
    if ":" in net:
        return TrainConfig(net=net)
    return _entry(net).published


def published_side(net: str) -> int:
    """Look up what a network's authors resized images to, pixels; `SIDE` for a network of one's own.

    Raises:
        ConfigError: no network of that name.
    """
    return SIDE if ":" in net else _entry(net).side


def build(net: str, classes: int, crop: int, seed: int) -> nn.Module:
    """Make a network with fresh weights.

    A function of one's own is called with those of the keyword arguments `classes`, `num_classes` (the same) and
    `crop` that it names.

    Args:
        net: name of a network, or `module:function`.
        classes: number of outputs.
        crop: height and width of the input, pixels.
        seed: of the weights.

    Raises:
        ConfigError: there is no such network, it cannot be made, or it does not turn (n, 3, crop, crop) into
            (n, classes).
    """
    factory = _own(net) if ":" in net else _entry(net).factory
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _call(factory, net, classes, crop)
        _check_output(module, net, classes, crop)  # lazy layers fill their weights here
    return module


def _entry(net: str) -> Network:
    if net not in NETWORKS:
        near = difflib.get_close_matches(net, NETWORKS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"no network {net!r}; {hint}there are {', '.join(sorted(NETWORKS))}, and module:function for one's own"
        )
    return NETWORKS[net]


def _own(net: str) -> Callable[..., object]:
    module_name, _, function = net.partition(":")
    if not module_name or not function:
        raise ConfigError(f"net {net}: one's own network is named as module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"net {net}: no module {error.name!r} on the Python path") from error
    factory: object = getattr(module, function, None)
    if not callable(factory):
        raise ConfigError(f"net {net}: module {module_name} has no function {function!r}")
    return factory


def _call(factory: Callable[..., object], net: str, classes: int, crop: int) -> nn.Module:
    offered = {"classes": classes, "num_classes": classes, "crop": crop}
    named = inspect.signature(factory).parameters
    try:
        module = factory(**{name: value for name, value in offered.items() if name in named})
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        raise ConfigError(f"net {net}: cannot be made for {classes} classes and crop {crop}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"net {net}: returned a {type(module).__name__}, not an nn.Module")
    return module


def _check_output(module: nn.Module, net: str, classes: int, crop: int) -> None:
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    was_training = module.training
    try:
        with torch.no_grad():
            scores = module.eval()(torch.zeros(1, 3, crop, crop, device=device))
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"net {net}: does not take images of 3 x {crop} x {crop}: {reason}") from error
    finally:
        module.train(was_training)
    if not isinstance(scores, torch.Tensor):
        raise ConfigError(f"net {net}: gives a {type(scores).__name__}, not a tensor of class scores")
    if scores.shape != (1, classes):
        shape = tuple(scores.shape)
        wanted = (1, classes)
        raise ConfigError(f"net {net}: an image gives scores of shape {shape}, {classes} classes ask for {wanted}")
