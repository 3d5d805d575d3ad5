"""Every operation against numpy, on random shapes, strides and views."""

import pickle
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparknet.tensor.ndarray import DTYPES, NDArray

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
FLOATS = st.floats(-1000, 1000, width=32)


@st.composite
def arrays(draw: st.DrawFn, dtypes: tuple[np.dtype, ...] = DTYPES) -> np.ndarray:
    """A numpy array as a view: a box, with steps, of a larger array whose axes are permuted."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(SHAPES)
    elements = st.integers(0, 255) if dtype == np.uint8 else FLOATS
    steps = [draw(st.integers(1, 3)) for _ in shape]
    margins = [draw(st.integers(0, 2)) for _ in shape]
    whole = tuple(n * step + margin for n, step, margin in zip(shape, steps, margins, strict=True))
    order = draw(st.permutations(range(len(shape))))
    stored = draw(hnp.arrays(dtype, tuple(whole[axis] for axis in order), elements=elements))
    permuted = stored.transpose(np.argsort(order).tolist()) if shape else stored
    box: Any = (*(slice(m, m + n * s, s) for n, s, m in zip(shape, steps, margins, strict=True)), ...)
    return cast(np.ndarray, permuted[box])


FLOATING = tuple(dtype for dtype in DTYPES if dtype != np.uint8)


def index_of(draw: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(draw(st.integers(0, n - 1)) for n in shape)


@given(arrays())
def test_it_shares_the_array_that_it_is_made_of(array: np.ndarray) -> None:
    wrapped = NDArray(array)
    assert wrapped.shape == array.shape
    assert wrapped.dtype == array.dtype
    assert wrapped.size == array.size
    assert wrapped.strides == tuple(s // array.itemsize for s in array.strides)
    assert np.shares_memory(wrapped.numpy(), array) or array.size == 0
    np.testing.assert_array_equal(wrapped.numpy(), array)


@given(arrays(), st.data())
def test_get_and_set(array: np.ndarray, data: st.DataObject) -> None:
    wrapped = NDArray(array)
    if array.size == 0:
        with pytest.raises(IndexError, match="are not within shape"):
            wrapped.get(*(0 for _ in array.shape))
        return
    index = index_of(data.draw, array.shape)
    assert wrapped.get(*index) == float(array[index])
    wrapped.set(*index, value=7)
    assert array[index] == 7


@given(arrays(), st.data())
def test_slice_views(array: np.ndarray, data: st.DataObject) -> None:
    wrapped = NDArray(array)
    axes = [axis for axis, length in enumerate(array.shape) if length]
    if not axes:
        return
    axis = data.draw(st.sampled_from(axes))
    index = data.draw(st.integers(0, array.shape[axis] - 1))
    view = wrapped.slice(axis, index)
    np.testing.assert_array_equal(view.numpy(), np.take(array, index, axis))
    if view.size:
        assert np.shares_memory(view.numpy(), array)
        view.set(*(0 for _ in view.shape), value=3)
        assert np.take(array, index, axis)[(0,) * (array.ndim - 1)] == 3


@given(arrays(), st.data())
def test_subarray_views(array: np.ndarray, data: st.DataObject) -> None:
    lower = [data.draw(st.integers(0, n)) for n in array.shape]
    upper = [data.draw(st.integers(low, n)) for low, n in zip(lower, array.shape, strict=True)]
    view = NDArray(array).subarray(lower, upper)
    box: Any = (*(slice(low, high) for low, high in zip(lower, upper, strict=True)), ...)
    expected = array[box]
    np.testing.assert_array_equal(view.numpy(), expected)
    assert view.size == 0 or np.shares_memory(view.numpy(), array)


@given(arrays(), st.data())
def test_transpose_views(array: np.ndarray, data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(array.ndim)))
    view = NDArray(array).transpose(axes)
    np.testing.assert_array_equal(view.numpy(), array.transpose(axes))
    np.testing.assert_array_equal(NDArray(array).transpose().numpy(), array.T)
    assert view.size == 0 or np.shares_memory(view.numpy(), array)


@given(arrays(), st.data())
def test_reshape_views_or_refuses(array: np.ndarray, data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(shapes_of(array.size)))
    try:
        view = NDArray(array).reshape(target)
    except ValueError:
        # Refused only where numpy would have had to copy.
        assert not np.shares_memory(array.reshape(target), array)
        view = NDArray(array).copy().reshape(target)
    else:
        assert view.size == 0 or np.shares_memory(view.numpy(), array)
    np.testing.assert_array_equal(view.numpy(), array.reshape(target))


def shapes_of(size: int) -> list[tuple[int, ...]]:
    if size == 0:
        return [(0,), (0, 3), (2, 0)]
    pairs = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    return [(size,), *pairs, *((a, 1, b) for a, b in pairs)]


@given(arrays())
def test_copies_are_of_ones_own(array: np.ndarray) -> None:
    wrapped = NDArray(array)
    for copied in (wrapped.copy().numpy(), wrapped.flat_copy()):
        assert not np.shares_memory(copied, array)
    np.testing.assert_array_equal(wrapped.copy().numpy(), array)
    np.testing.assert_array_equal(wrapped.flat_copy(), array.ravel())
    np.testing.assert_array_equal(wrapped.to_flat(), array.ravel())
    if array.flags.c_contiguous and array.size:
        assert np.shares_memory(wrapped.to_flat(), array)


@given(arrays(), st.data())
def test_arithmetic(array: np.ndarray, data: st.DataObject) -> None:
    elements = st.integers(0, 255) if array.dtype == np.uint8 else FLOATS
    other = data.draw(hnp.arrays(array.dtype, array.shape, elements=elements))
    before = array.copy()
    np.testing.assert_array_equal(NDArray.plus(NDArray(array), NDArray(other)).numpy(), before + other)
    np.testing.assert_array_equal(array, before)
    NDArray(array).add(NDArray(other))
    np.testing.assert_array_equal(array, before + other)
    NDArray(array).subtract(NDArray(other))
    np.testing.assert_array_equal(array, before + other - other)


@given(arrays(FLOATING), st.floats(0.1, 100))
def test_scalar_divide(array: np.ndarray, divisor: float) -> None:
    before = array.copy()
    NDArray(array).scalar_divide(divisor)
    np.testing.assert_array_equal(array, np.divide(before, divisor, dtype=before.dtype))


@given(arrays(FLOATING), st.floats(0.01, 10))
def test_equality_within_a_tolerance(array: np.ndarray, gap: float) -> None:
    one, other = NDArray(array.astype(np.float64)), NDArray(array.astype(np.float64))
    assert one.equals(other)
    if array.size:
        other.numpy().flat[array.size // 2] += gap
        assert not one.equals(other)
        assert not one.equals(other, gap * 0.9)
        assert one.equals(other, gap * 1.1)


def test_what_equals_what() -> None:
    infinite = NDArray(np.array([np.inf, 1.0]))
    assert infinite.equals(infinite)
    assert not NDArray(np.array([np.nan])).equals(NDArray(np.array([np.nan])), 1e9)
    assert not NDArray.zeros((2, 3)).equals(NDArray.zeros((3, 2)), 1)
    assert NDArray(np.array([200], np.uint8)).equals(NDArray(np.array([100], np.uint8)), 100)
    assert not NDArray(np.array([100], np.uint8)).equals(NDArray(np.array([200], np.uint8)), 99)


@given(arrays())
def test_torch_shares(array: np.ndarray) -> None:
    wrapped = NDArray(array)
    tensor = wrapped.torch()
    np.testing.assert_array_equal(tensor.numpy(), array)
    back = NDArray.from_torch(tensor)
    np.testing.assert_array_equal(back.numpy(), array)
    if array.size:
        tensor[(0,) * array.ndim] = 9
        assert array[(0,) * array.ndim] == 9
        assert back.get(*(0 for _ in array.shape)) == 9


@given(arrays())
def test_arrow_shares(array: np.ndarray) -> None:
    tensor = NDArray(array).arrow()
    assert tensor.shape == array.shape
    back = NDArray.from_arrow(tensor)
    np.testing.assert_array_equal(back.numpy(), array)
    assert array.size == 0 or np.shares_memory(back.numpy(), array)


def test_what_torch_and_arrow_refuse() -> None:
    constant = NDArray.from_arrow(pa.Tensor.from_numpy(np.zeros((2, 2), np.float32)))
    with pytest.raises(ValueError, match="read-only"):
        constant.set(0, 0, value=1)
    with pytest.raises(ValueError, match=r"read-only.*copy\(\)"):
        constant.torch()
    with pytest.raises(ValueError, match="requires a gradient"):
        NDArray.from_torch(torch.zeros(2, requires_grad=True))
    with pytest.raises(TypeError, match="got int64"):
        NDArray.from_torch(torch.zeros(2, dtype=torch.int64))


@given(arrays())
def test_pickles_as_it_is(array: np.ndarray) -> None:
    back = pickle.loads(pickle.dumps(NDArray(array), protocol=5))
    np.testing.assert_array_equal(back.numpy(), array)
    assert back.dtype == array.dtype


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_view_pickles_without_its_parents_buffer(protocol: int) -> None:
    parent = NDArray.zeros((1000, 1000))
    views = [
        parent.slice(0, 5),
        parent.slice(1, 5),
        parent.subarray((10, 10), (20, 20)),
        parent.transpose().subarray((0, 0), (2, 500)),
    ]
    for view in views:
        assert len(pickle.dumps(view, protocol=protocol)) < view.size * 4 + 500


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda a: NDArray(cast(Any, [1.0])), TypeError, "got list"),
        (lambda a: NDArray(np.zeros(2, np.int32)), TypeError, "got int32"),
        (lambda a: NDArray.zeros((2,), np.float16), TypeError, "got float16"),
        (lambda a: a.get(0), IndexError, r"\(0,\) are not within shape \(2, 3\)"),
        (lambda a: a.get(0, 3), IndexError, r"\(0, 3\) are not within shape \(2, 3\)"),
        (lambda a: a.get(0, -1), IndexError, "not within"),
        (lambda a: a.set(2, 0, value=1), IndexError, "not within"),
        (lambda a: a.slice(2, 0), IndexError, "axis must be from 0 to 1, got 2"),
        (lambda a: a.slice(1, 3), IndexError, "index of axis 1 must be from 0 to 2, got 3"),
        (lambda a: a.subarray((0,), (1,)), IndexError, "2 lower and upper offsets wanted"),
        (lambda a: a.subarray((0, 2), (1, 1)), IndexError, "axis 1: offsets 2 to 1"),
        (lambda a: a.subarray((0, 0), (3, 1)), IndexError, "axis 0: offsets 0 to 3"),
        (lambda a: a.reshape((4,)), ValueError, "no view of shape"),
        (lambda a: a.transpose().reshape((6,)), ValueError, r"copy\(\) it first"),
        (lambda a: a.transpose((0, 0)), ValueError, "repeated axis"),
        (lambda a: a.add(NDArray.zeros((3, 2))), ValueError, r"\(2, 3\) on one side, \(3, 2\)"),
        (lambda a: a.add(NDArray.zeros((2, 3), np.float64)), TypeError, "float32 on one side, float64"),
        (lambda a: a.scalar_divide(0), ValueError, "divisor is 0"),
        (lambda a: NDArray.zeros((2,), np.uint8).scalar_divide(2), TypeError, "uint8"),
        (lambda a: NDArray.from_flat(np.zeros((2, 2)), (4,)), ValueError, "of 2 dimensions"),
    ],
)
def test_misuse_names_the_value(act: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        act(NDArray.zeros((2, 3)))


def test_made_from_numbers_and_printed() -> None:
    array = NDArray.from_flat([1, 2, 3, 4, 5, 6.5], (2, 3))
    assert array.dtype == np.float32
    assert array.get(1, 2) == 6.5
    assert repr(array) == "NDArray(shape=(2, 3), dtype=float32)\n[[1.  2.  3. ]\n [4.  5.  6.5]]"
    assert len(repr(NDArray.zeros((1000, 1000)))) < 1000
