import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sparknet.tensor.weights import WeightCollection, average_flat, weighted_average

SHAPES = {"conv.weight": (2, 3), "conv.bias": (2,), "scale": (), "none": (0, 4)}


def counting(dtype: type = np.float32) -> WeightCollection:
    return WeightCollection(SHAPES, np.arange(9, dtype=dtype))


def of(*values: float, dtype: type = np.float32) -> WeightCollection:
    return WeightCollection({"w": (len(values),)}, np.array(values, dtype))


def test_tensors_lie_side_by_side_in_the_order_given() -> None:
    weights = counting()
    assert list(weights) == ["conv.weight", "conv.bias", "scale", "none"]
    assert len(weights) == 4
    np.testing.assert_array_equal(weights["conv.weight"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(weights["conv.bias"], [6, 7])
    assert weights["scale"].shape == ()
    assert weights["scale"] == 8
    assert weights["none"].shape == (0, 4)
    assert weights.shapes == SHAPES


def test_a_view_and_the_buffer_share_memory_both_ways() -> None:
    flat = np.zeros(9, np.float32)
    weights = WeightCollection(SHAPES, flat)
    weights["conv.bias"][1] = 5
    assert flat[7] == 5
    flat[8] = -2
    assert weights["scale"] == -2


def test_torch_shares_memory_both_ways() -> None:
    weights = counting()
    tensors = weights.torch()
    assert {name: tuple(t.shape) for name, t in tensors.items()} == SHAPES
    tensors["conv.weight"].mul_(2)
    np.testing.assert_array_equal(weights.flat[:6], [0, 2, 4, 6, 8, 10])
    weights.flat[6:8] = 1
    assert tensors["conv.bias"].tolist() == [1, 1]
    assert tensors["conv.weight"].data_ptr() == weights.flat.ctypes.data


def test_without_a_buffer_it_is_zeros_in_float32() -> None:
    weights = WeightCollection(SHAPES)
    assert weights.flat.dtype == np.float32
    assert weights.flat.tolist() == [0] * 9


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        (np.zeros(8, np.float32), "holds 8 elements, the shapes ask for 9"),
        (np.zeros(9, np.int64), "got 1-D int64"),
        (np.zeros(9, np.float16), "got 1-D float16"),
        (np.zeros((3, 3), np.float32), "got 2-D float32"),
        (np.zeros(18, np.float32)[::2], "must be 1-D, contiguous"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(flat: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightCollection(SHAPES, flat)


def test_sum_difference_and_scale_make_new_collections() -> None:
    one, other = counting(), counting() * 10
    np.testing.assert_array_equal((one + other).flat, np.arange(9) * 11)
    np.testing.assert_array_equal((other - one).flat, np.arange(9) * 9)
    np.testing.assert_array_equal((0.5 * one).flat, np.arange(9) / 2)
    np.testing.assert_array_equal(one.flat, np.arange(9))
    assert (0.5 * one).flat.dtype == np.float32
    assert (one + other).shapes == SHAPES


@pytest.mark.parametrize("factor", [np.float32(2), np.float64(2), np.int64(2), 2, 2.0])
def test_scalars_of_numpy_scale_from_either_side(factor: float) -> None:
    for product in (factor * counting(), counting() * factor):
        assert isinstance(product, WeightCollection)
        np.testing.assert_array_equal(product.flat, np.arange(9) * 2)


def test_float64_stays_float64() -> None:
    tiny = 1e-12  # lost beside 1 in float32
    weights = of(1.0, 1.0, dtype=np.float64) + of(tiny, 0.0, dtype=np.float64) * 1.0
    assert weights.flat.dtype == np.float64
    assert weights["w"][0] - 1 == pytest.approx(tiny, rel=1e-3)
    assert weighted_average([weights, weights], [1, 1]).flat[0] == weights.flat[0]


def test_allclose_keeps_to_its_tolerance() -> None:
    assert of(1.0, 2.0).allclose(of(1.0, 2.0 + 1e-6))
    assert not of(1.0, 2.0).allclose(of(1.0, 2.001))
    assert of(1.0, 2.0).allclose(of(1.0, 2.001), rtol=1e-3)
    assert of(0.0).allclose(of(0.01), rtol=0, atol=0.1)
    assert not of(np.nan).allclose(of(np.nan))


def test_comparing_and_hashing_are_by_identity() -> None:
    one = counting()
    assert one == one
    assert one != counting()
    assert {one: 1}[one] == 1


OTHERS = [
    ({**SHAPES, "conv.bias": (3,)}, r"tensor conv\.bias has shape \(2,\) on one side, \(3,\) on the other"),
    ({"conv.bias": (2,), "conv.weight": (2, 3)}, r"tensor conv\.weight on one side is conv\.bias on the other"),
    ({name: SHAPES[name] for name in ("conv.weight", "conv.bias", "scale")}, r"tensor none is on one side only \(4"),
    ({**SHAPES, "extra": (1,)}, r"tensor extra is on one side only \(4 tensors against 5\)"),
    ({**SHAPES, "conv.weight": (3, 2)}, r"tensor conv\.weight has shape \(2, 3\) on one side, \(3, 2\)"),
]


@pytest.mark.parametrize(("shapes", "message"), OTHERS)
def test_what_differs_is_named_before_anything_is_added(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    mine, theirs = counting(), WeightCollection(shapes)
    with pytest.raises(ValueError, match=message):
        mine + theirs
    with pytest.raises(ValueError, match=message):
        mine - theirs
    with pytest.raises(ValueError, match=message):
        mine.allclose(theirs)
    with pytest.raises(ValueError, match=message):
        weighted_average([mine, theirs], [1, 1])
    np.testing.assert_array_equal(mine.flat, np.arange(9))


def test_average_is_weighted() -> None:
    average = weighted_average([of(0.0, 4.0), of(8.0, 0.0)], [3, 1])
    assert average.flat.tolist() == [2, 3]
    assert average.flat.dtype == np.float32
    assert weighted_average([of(0.0, 4.0), of(8.0, 0.0)], [0.75, 0.25]).flat.tolist() == [2, 3]
    assert weighted_average([of(1.0), of(100.0)], [1, 0]).flat.tolist() == [1]


def test_average_takes_collections_one_at_a_time() -> None:
    alive: list[int] = []

    def made() -> Iterator[WeightCollection]:
        for value in (1.0, 2.0, 6.0):
            alive.append(int(value))
            yield of(value)

    assert weighted_average(made(), [1, 1, 1]).flat.tolist() == [3]
    assert alive == [1, 2, 6]


@pytest.mark.parametrize("replicas", [3, 7])
def test_average_of_replicas_is_that_replica_to_the_bit(replicas: int) -> None:
    replica = WeightCollection({"w": (10_000,)}, np.random.default_rng(0).normal(size=10_000).astype(np.float32))
    average = weighted_average([replica] * replicas, [40] * replicas)
    assert average.flat.tobytes() == replica.flat.tobytes()

    # What float32 would have made of it: the reason for the float64 sum.
    summed = np.zeros(10_000, np.float32)
    for _ in range(replicas):
        summed += replica.flat
    assert np.mean(summed / np.float32(replicas) != replica.flat) > 0.05


@given(
    replica=npst.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False)),
    weights=st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9),
)
def test_average_of_replicas_is_exact_for_any_floats_and_weights(replica: np.ndarray, weights: list[float]) -> None:
    finite = np.nan_to_num(replica, posinf=1, neginf=-1)
    assert average_flat([finite] * len(weights), weights).tobytes() == (finite + np.float32(0)).tobytes()


def test_average_of_float64_replicas_is_that_replica_but_for_the_last_bit() -> None:
    replica = np.random.default_rng(0).normal(size=10_000)
    np.testing.assert_array_max_ulp(average_flat([replica] * 3, [1, 1, 1]), replica, maxulp=1)


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [2, -1], [float("nan"), 1], [float("inf"), 1], [-1, -1]], ids=str)
def test_weights_that_mean_nothing_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be finite, not negative and not all zero, got"):
        weighted_average([of(1.0), of(2.0)], weights)


@pytest.mark.parametrize("weights", [[1], [1, 1, 1]], ids=str)
def test_as_many_weights_as_collections(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="argument"):
        weighted_average([of(1.0), of(2.0)], weights)


def test_nothing_has_no_average() -> None:
    with pytest.raises(ValueError, match="no collection to average"):
        weighted_average([], [1])
    with pytest.raises(ValueError, match="weights must be"):
        average_flat([], [])


@pytest.mark.parametrize(("first", "second"), [(5, 1), (1, 5), (5, 0), (5, 4)])
def test_arrays_of_other_lengths_are_not_averaged(first: int, second: int) -> None:
    with pytest.raises(ValueError, match=f"arrays of {first} and of {second} elements"):
        average_flat([np.ones(first, np.float32), np.ones(second, np.float32)], [1, 1])


def test_from_arrays_copies() -> None:
    source: dict[str, np.ndarray] = {
        "a": np.array([[1, 2]], np.float32),
        "s": np.array(3, np.float32),
        "h": np.array([0.5], np.float16),
    }
    weights = WeightCollection.from_arrays(source)
    source["a"][:] = 0
    assert weights.flat.tolist() == [1, 2, 3, 0.5]
    assert weights.flat.dtype == np.float32
    assert weights.shapes == {"a": (1, 2), "s": (), "h": (1,)}


def test_from_arrays_takes_transposed_arrays_in_their_own_order() -> None:
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(WeightCollection.from_arrays({"t": turned})["t"], turned)


def test_from_arrays_widens_to_float64_where_one_is() -> None:
    weights = WeightCollection.from_arrays({"a": np.array([0.1]), "b": np.array([0.5], np.float32)})
    assert weights.flat.dtype == np.float64
    assert weights["a"] == 0.1


def test_from_no_arrays_is_empty() -> None:
    weights = WeightCollection.from_arrays({})
    assert (len(weights), weights.flat.size) == (0, 0)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.complex64, np.dtype(">f8")], ids=str)
def test_from_arrays_refuses_what_float32_cannot_hold(dtype: np.typing.DTypeLike) -> None:
    arrays = {"fine": np.zeros(1, np.float32), "counter": np.zeros(1, dtype)}
    with pytest.raises(ValueError, match=f"tensor counter must be float16, float32 or float64, got {np.dtype(dtype)}"):
        WeightCollection.from_arrays(arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("again", [lambda w: pickle.loads(pickle.dumps(w)), copy.deepcopy, lambda w: w.copy()])
def test_a_copy_has_one_buffer_of_its_own(again: object, dtype: type) -> None:
    weights = counting(dtype)
    other = again(weights)  # type: ignore[operator]
    assert other.shapes == SHAPES
    assert other.flat.dtype == dtype
    assert other.flat.tobytes() == weights.flat.tobytes()
    other.flat[6] = 99
    assert other["conv.bias"].tolist() == [99, 7]
    other["scale"][...] = 77
    assert other.flat[8] == 77
    np.testing.assert_array_equal(weights.flat, np.arange(9))


def test_a_pickle_of_a_part_of_a_buffer_holds_that_part_only() -> None:
    large = np.zeros(1_000_000, np.float32)
    assert len(pickle.dumps(WeightCollection({"w": (4,)}, large[:4]))) < 1000


def test_with_flat_lays_the_names_over_another_buffer_without_copy() -> None:
    flat = np.ones(9, np.float64)
    other = counting().with_flat(flat)
    flat[0] = 5
    assert other["conv.weight"][0, 0] == 5
    assert other.shapes == SHAPES
    with pytest.raises(ValueError, match="holds 3 elements"):
        counting().with_flat(np.ones(3, np.float32))


@given(st.dictionaries(st.text(min_size=1), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
def test_any_names_and_shapes(shapes: dict[str, tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: np.asarray(rng.random(shape, np.float32)) for name, shape in shapes.items()}
    weights = WeightCollection.from_arrays(arrays)
    assert list(weights) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name], array)
        assert weights[name].shape == array.shape
        np.testing.assert_array_equal(weights.torch()[name].numpy(), array)
    assert (weights - weights).flat.sum() == 0
    assert (weights + weights).allclose(weights * 2, rtol=0, atol=0)


def test_a_tensor_of_torch_made_from_it_trains_in_it() -> None:
    weights = of(1.0, 2.0)
    parameter = torch.nn.Parameter(weights.torch()["w"])
    (parameter**2).sum().backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD([parameter], lr=0.25).step()
    assert weights.flat.tolist() == [0.5, 1]
