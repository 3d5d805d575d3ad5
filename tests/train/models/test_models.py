from pathlib import Path

import pytest
import torch

from sparknet.errors import ConfigError
from sparknet.train.config import TrainConfig
from sparknet.train.models import NETWORKS, build, published, published_side
from tests.train import networks

OWN = [f"tests.train.networks:{name}" for name in ("plain", "dropout", "batchnorm", "Tied", "Lazy", "Noisy")]


@pytest.mark.parametrize("net", [*NETWORKS, *OWN])
def test_the_seed_decides_the_weights_and_torchs_own_generator_is_left_alone(net: str) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (build(net, 3, 16, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    weights = [name for name in first if name.endswith("weight") and first[name].unique().numel() > 1]
    assert weights
    assert not any(torch.equal(first[name], other[name]) for name in weights)


@pytest.mark.parametrize("net", [*NETWORKS, *OWN])
def test_a_network_gives_a_score_a_class_and_comes_ready_to_train(net: str) -> None:
    module = build(net, 7, 20, 0)
    assert module.training
    assert module(torch.zeros(2, 3, 20, 20)).shape == (2, 7)


def test_the_settings_that_come_with_each() -> None:
    assert all(published(net).net == net for net in NETWORKS)
    quick, lenet = published("cifar10_quick"), published("lenet")
    # Caffe: examples/cifar10/cifar10_quick_solver.prototxt, examples/mnist/lenet_solver.prototxt
    assert (quick.solver.base_lr, quick.solver.momentum, quick.solver.weight_decay) == (0.001, 0.9, 0.004)
    assert (quick.solver.policy, quick.batch, quick.crop, quick.mean) == ("fixed", 100, 32, "image")
    assert (lenet.solver.base_lr, lenet.solver.momentum, lenet.solver.weight_decay) == (0.01, 0.9, 0.0005)
    assert (lenet.solver.policy, lenet.solver.gamma, lenet.solver.power) == ("inv", 0.0001, 0.75)
    assert (lenet.batch, lenet.crop, lenet.scale, lenet.mean) == (64, 28, 0.00390625, "none")
    assert published("my.own:net") == TrainConfig(net="my.own:net")


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            "cifar10_qiuck",
            r"no network 'cifar10_qiuck'; did you mean cifar10_quick\? there are cifar10_quick, lenet, and module:func",
        ),
        ("Lenet", r"no network 'Lenet'; did you mean lenet\?"),
        ("transformer", "no network 'transformer'; there are cifar10_quick, lenet, and module:function for one's own"),
        ("", "no network ''; there are"),
    ],
)
def test_an_unknown_network(net: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        build(net, 10, 32, 0)
    with pytest.raises(ConfigError, match=f"^{message}"):
        published(net)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("absent", "module tests.train.networks has no function 'absent'"),
        ("CONSTANT", "module tests.train.networks has no function 'CONSTANT'"),
        ("", "one's own network is named as module:function"),
        ("no_module", "returned a str, not an nn.Module"),
        ("too_many", r"an image gives scores of shape \(1, 5\), 3 classes ask for \(1, 3\)"),
        ("not_flat", r"an image gives scores of shape \(1, 3, 1, 1\), 3 classes ask for \(1, 3\)"),
        ("Two", "gives a tuple, not a tensor of class scores"),
        ("Pair", "does not take images of 3 x 16 x 16: .*missing 1 required positional argument: 'y'"),
        ("too_small", "does not take images of 3 x 16 x 16: Calculated padded input size"),
        ("needs_more", "cannot be made for 3 classes and crop 16: .*missing 1 required positional argument: 'width'"),
    ],
)
def test_a_network_of_ones_own_that_cannot_be_used(function: str, message: str) -> None:
    net = f"tests.train.networks:{function}"
    with pytest.raises(ConfigError, match=f"^net {net}: {message}") as caught:
        build(net, 3, 16, 0)
    assert "\n" not in str(caught.value)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"^net my\.nets:build: no module 'my' on the Python path$"):
        build("my.nets:build", 3, 16, 0)
    with pytest.raises(ConfigError, match=r"^net :build: one's own network is named as module:function$"):
        build(":build", 3, 16, 0)


def test_a_failure_inside_ones_own_module_is_shown_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net_that_fails.py").write_text("import torch\nlayer = torch.nn.Linaer\n\ndef build(): ...\n")
    (tmp_path / "net_that_misses.py").write_text("import timmm\n\ndef build(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AttributeError, match="Linaer"):
        build("net_that_fails:build", 3, 16, 0)
    with pytest.raises(ConfigError, match=r"^net net_that_misses:build: no module 'timmm' on the Python path$"):
        build("net_that_misses:build", 3, 16, 0)


def test_ones_own_function_gets_what_it_names() -> None:
    assert isinstance(build("tests.train.networks:Tied", 4, 16, 0), networks.Tied)  # classes
    assert build("tests.train.networks:dropout", 4, 10, 0).get_parameter("1.weight").shape == (8, 300)  # both
    with pytest.raises(ConfigError, match=r"scores of shape \(1, 300\), 4 classes"):  # neither
        build("tests.train.networks:nothing", 4, 10, 0)


@pytest.mark.parametrize(("net", "smallest"), [("cifar10_quick", 8), ("lenet", 13)])
def test_the_smallest_crop(net: str, smallest: int) -> None:
    build(net, 3, smallest, 0)
    for crop in (1, smallest - 1):
        with pytest.raises(ConfigError, match=f"net {net}: .* crop {crop}: crop must be at least {smallest} for"):
            build(net, 3, crop, 0)


def test_the_side_that_images_are_resized_to_unless_told() -> None:
    assert {net: published_side(net) for net in (*NETWORKS, "own:net")} == {
        "cifar10_quick": 32,
        "lenet": 28,
        "own:net": 256,
    }
    with pytest.raises(ConfigError, match="no network 'nope'"):
        published_side("nope")
