import numpy as np
import pytest
import torch
from torch import nn

from sparknet.errors import ConfigError
from sparknet.tensor.weights import weighted_average
from sparknet.train.config import SolverConfig
from sparknet.train.net import Net
from sparknet.train.solver import Multipliers
from tests.train import networks

SOLVER = SolverConfig(base_lr=0.1, momentum=0.9, weight_decay=0.01)


def batch(n: int = 6, side: int = 8, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, side, side, generator=generator), torch.arange(n) % classes


def batchnorm_of(net: Net) -> nn.BatchNorm2d:
    norm = net.module.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm2d)
    return norm


def test_weights_are_those_of_the_module_in_its_order() -> None:
    module = networks.plain(3, 8)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    weights = Net(module, SOLVER).get_weights()
    assert list(weights) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert weights.shapes == {name: tuple(tensor.shape) for name, tensor in before.items()}
    for name, tensor in before.items():
        np.testing.assert_array_equal(weights[name], tensor.numpy())


def test_on_a_cpu_weights_are_a_view() -> None:
    module = networks.plain(3, 8)
    net = Net(module, SOLVER)
    weights = net.get_weights()
    weights["3.bias"][:] = 7
    assert module.get_parameter("3.bias").tolist() == [7, 7, 7]
    net.step(*batch(), 0)
    np.testing.assert_array_equal(weights["0.weight"], module.get_parameter("0.weight").detach().numpy())
    assert weights.flat.ctypes.data == module.get_parameter("0.weight").data_ptr()


def test_weights_put_in_are_copied_and_change_the_output() -> None:
    one, other = Net(networks.plain(3, 8), SOLVER), Net(networks.plain(3, 8), SOLVER)
    x, _ = batch()
    assert not torch.equal(one.forward(x), other.forward(x))
    flat = one.get_weights().flat.copy()
    other.set_weights(flat)
    assert torch.equal(one.forward(x), other.forward(x))
    flat[:] = 0
    assert torch.equal(one.forward(x), other.forward(x))


@pytest.mark.parametrize("length", [0, 1, 5, 10_000])
def test_weights_and_momentum_of_another_length(length: int) -> None:
    net = Net(nn.Linear(2, 2), SOLVER)
    before = net.get_weights().flat.copy()
    with pytest.raises(ValueError, match=rf"6 elements expected, got an array of shape \({length},\)"):
        net.set_weights(np.zeros(length, np.float32))
    with pytest.raises(ValueError, match=rf"6 elements expected, got an array of shape \({length},\)"):
        net.set_momentum(np.zeros(length, np.float32))
    np.testing.assert_array_equal(net.get_weights().flat, before)


def test_momentum_goes_in_and_out_by_copy() -> None:
    net = Net(nn.Linear(2, 2), SOLVER)
    assert net.get_momentum().tolist() == [0] * 6
    flat = np.arange(6, dtype=np.float32)
    net.set_momentum(flat)
    flat[:] = -1
    taken = net.get_momentum()
    assert taken.tolist() == [0, 1, 2, 3, 4, 5]
    taken[:] = -1
    assert net.get_momentum().tolist() == [0, 1, 2, 3, 4, 5]
    net.set_momentum(None)
    assert net.get_momentum().tolist() == [0] * 6


def test_momentum_put_in_moves_the_next_step() -> None:
    net = Net(networks.plain(3, 8), SOLVER)
    start = net.get_weights().copy()
    push = np.ones_like(net.get_momentum())
    net.step(*batch(), 0)
    without = net.get_weights().copy()
    net.set_weights(start.flat)
    net.set_momentum(push)
    net.step(*batch(), 0)
    np.testing.assert_allclose(without.flat - net.get_weights().flat, 0.9, rtol=1e-5)


def test_a_step_is_that_of_a_plain_torch_module() -> None:
    module = networks.plain(3, 8)
    twin = networks.plain(3, 8)
    twin.load_state_dict(module.state_dict())
    net = Net(module, SolverConfig(base_lr=0.1, momentum=0.9, weight_decay=0.01, policy="step", step_size=2))
    filters = [p for name, p in twin.named_parameters() if name.endswith("weight")]
    biases = [p for name, p in twin.named_parameters() if name.endswith("bias")]
    torchs = torch.optim.SGD(
        [{"params": filters, "lr": 0.1}, {"params": biases, "lr": 0.2, "weight_decay": 0}],
        momentum=0.9,
        weight_decay=0.01,
    )
    for iteration in range(2):  # as long as the rate stays, torch's is the same
        x, labels = batch(seed=iteration)
        torchs.zero_grad()
        expected = nn.functional.cross_entropy(twin(x), labels)
        expected.backward()  # type: ignore[no-untyped-call]
        torchs.step()
        assert float(net.step(x, labels, iteration)) == pytest.approx(float(expected.detach()))
        for name, parameter in twin.named_parameters():
            torch.testing.assert_close(net.get_weights().torch()[name], parameter.detach(), rtol=1e-5, atol=1e-6)


def test_gradients_do_not_gather_over_steps() -> None:
    net = Net(networks.plain(3, 8), SolverConfig(base_lr=1e-9, momentum=0, weight_decay=0))
    x, labels = batch()
    gradients = []
    for iteration in range(2):
        net.step(x, labels, iteration)
        gradient = net.module.get_parameter("3.bias").grad
        assert gradient is not None
        gradients.append(gradient.clone())
    torch.testing.assert_close(*gradients)


def test_forward_is_without_dropout_and_step_with_it() -> None:
    net = Net(networks.dropout(3, 8), SolverConfig(base_lr=1e-9, momentum=0, weight_decay=0))
    x, labels = batch()
    assert torch.equal(net.forward(x), net.forward(x))
    torch.manual_seed(0)
    losses = {float(net.step(x, labels, 0)) for _ in range(5)}
    assert len(losses) == 5
    expected = float(nn.functional.cross_entropy(net.forward(x), labels))
    assert torch.equal(net.forward(x), net.forward(x)), "a forward after a step is in evaluation mode again"
    assert expected not in losses
    assert not net.forward(x).requires_grad


def test_batchnorm_statistics_travel() -> None:
    net, other = Net(networks.batchnorm(3), SOLVER), Net(networks.batchnorm(3), SOLVER)
    for iteration in range(3):
        net.step(*batch(seed=iteration), iteration)
    weights = net.get_weights()
    assert weights["1.num_batches_tracked"] == 3
    assert np.abs(weights["1.running_mean"]).max() > 0
    other.set_weights(weights.flat)
    norm = batchnorm_of(other)
    assert norm.num_batches_tracked is not None
    assert norm.running_mean is not None
    assert norm.num_batches_tracked.dtype == torch.int64
    assert int(norm.num_batches_tracked) == 3
    np.testing.assert_array_equal(norm.running_mean.numpy(), weights["1.running_mean"])
    x, _ = batch(seed=9)
    assert torch.equal(net.forward(x), other.forward(x))


def test_batchnorm_statistics_are_averaged_and_the_counter_stays_whole() -> None:
    nets = [Net(networks.batchnorm(3), SOLVER) for _ in range(2)]
    for worker, net in enumerate(nets):
        for iteration in range(2 + worker):
            net.step(*batch(seed=10 * worker + iteration), iteration)
    taken = [net.get_weights().copy() for net in nets]
    average = weighted_average(taken, [3, 1])
    np.testing.assert_allclose(
        average["1.running_var"], 0.75 * taken[0]["1.running_var"] + 0.25 * taken[1]["1.running_var"], rtol=1e-6
    )
    assert average["1.num_batches_tracked"] == 2.25
    nets[0].set_weights(average.flat)
    counter = batchnorm_of(nets[0]).num_batches_tracked
    assert counter is not None
    assert int(counter) == 2


def test_a_large_counter_survives_the_round_trip() -> None:
    net = Net(networks.batchnorm(3), SOLVER)
    counter = batchnorm_of(net).num_batches_tracked
    assert counter is not None
    counter.fill_(2**24)
    flat = net.get_weights().flat.copy()
    counter.zero_()
    net.set_weights(flat)
    assert int(counter) == 2**24


def test_a_tied_tensor_is_held_once_and_stays_tied() -> None:
    module = networks.Tied(3)
    net = Net(module, SOLVER)
    assert list(net.get_weights()) == ["first.weight", "last.weight", "last.bias"]
    assert len(net.get_momentum()) == 9 + 9 + 3
    net.step(*batch(), 0)
    assert module.first.weight is module.second.weight
    net.get_weights()["first.weight"][:] = 5
    assert set(module.second.weight.ravel().tolist()) == {5}


def test_a_float64_module_keeps_its_bits() -> None:
    module = networks.Wide(3)
    net = Net(module, SOLVER)
    with torch.no_grad():
        module.last.bias.fill_(1 / 3)
    weights = net.get_weights()
    assert weights.flat.dtype == np.float64
    assert weights["last.bias"][0] == 1 / 3
    assert net.get_momentum().dtype == np.float64
    net.step(*batch(), 0)
    weights = net.get_weights()
    other = Net(networks.Wide(3), SOLVER)
    other.set_weights(weights.flat)
    assert other.get_weights().flat.tobytes() == weights.flat.tobytes()
    assert int(other.module.state_dict()["norm.num_batches_tracked"]) == 1


def test_a_bfloat16_module_trains_and_travels() -> None:
    net = Net(networks.Half(3), SOLVER)
    start = net.get_weights().copy()
    net.step(*batch(), 0)
    moved = net.get_weights()
    assert moved.flat.dtype == np.float32
    assert not np.array_equal(moved.flat, start.flat)
    assert net.get_momentum().dtype == np.float32
    other = Net(networks.Half(3), SOLVER)
    other.set_weights(moved.flat)
    assert other.module.state_dict()["last.weight"].dtype == torch.bfloat16
    np.testing.assert_array_equal(other.get_weights().flat, moved.flat)


def test_frozen_parameters_travel_and_stand_still() -> None:
    net = Net(networks.Frozen(3), SOLVER)
    start = net.get_weights().copy()
    assert set(start) == {"first.weight", "first.bias", "idle.weight", "idle.bias", "last.weight", "last.bias"}
    assert len(net.get_momentum()) == 4 + 2 + 15 + 3  # without the 20 that are frozen
    net.step(*batch(), 0)
    moved = {name for name, value in net.get_weights().items() if not np.array_equal(value, start[name])}
    assert moved == {"last.weight", "last.bias"}


def test_a_multiplier_of_no_parameter() -> None:
    module = nn.Linear(2, 2)
    module.multipliers = {"wieght": Multipliers(lr=2)}  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="a multiplier names wieght, which is no parameter; there are weight, bias"):
        Net(module, SOLVER)


@pytest.mark.parametrize("module", [nn.Flatten(), nn.Linear(2, 2).requires_grad_(False)], ids=["none", "all frozen"])
def test_a_module_without_anything_to_train(module: nn.Module) -> None:
    with pytest.raises(ConfigError, match=f"^{type(module).__name__} has no parameter that trains$"):
        Net(module, SOLVER)


def test_a_module_in_channels_last_keeps_its_weights() -> None:
    module = networks.plain(3, 8)
    x, _ = batch()
    expected = module(x)
    net = Net(module.to(memory_format=torch.channels_last), SOLVER)  # type: ignore[call-overload]
    torch.testing.assert_close(net.forward(x), expected.detach())


def test_a_recurrent_module_trains_in_the_flat_buffer() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(24, 5, batch_first=True)
            self.last = nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.last(self.lstm(x.permute(0, 2, 1, 3).flatten(2))[0][:, -1])
            return scores

    net, other = Net(Recurrent(), SOLVER), Net(Recurrent(), SOLVER)
    start = net.get_weights().copy()
    net.step(*batch(), 0)
    assert all(np.any(value != start[name]) for name, value in net.get_weights().items())
    other.set_weights(net.get_weights().flat)
    x, _ = batch()
    assert torch.equal(net.forward(x), other.forward(x))
