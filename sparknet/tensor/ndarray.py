"""The paper's NDArray: a shaped, strided view of one buffer.

numpy is the answer to nearly all of it, and the class says so by being thin. What it adds is a promise: indexing,
slicing, transposing and reshaping never copy, so that writing to a view writes to the buffer that it views; what does
copy has `copy` in its name; and only the element types that images and weights have are let in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

DTYPES = (np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.float64))


class NDArray:
    """An n-dimensional array over a buffer that it may share.

    Args:
        array: of uint8, float32 or float64, of any shape and strides; shared, not copied.

    Raises:
        TypeError: not a numpy array, or of another type.
    """

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a numpy array is wanted, got {type(array).__name__}; use numpy.asarray")
        if array.dtype not in DTYPES:
            raise TypeError(f"element type must be one of uint8, float32, float64, got {array.dtype}")
        self._array = array.view(np.ndarray)  # a subclass (a matrix, a memory map) has rules of its own

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: type[np.generic] | np.dtype = np.float32) -> "NDArray":
        """Make an array of zeros over a buffer of its own.

        Raises:
            TypeError: an element type that is not supported.
            ValueError: a negative length.
        """
        return cls(np.zeros(tuple(shape), dtype))

    @classmethod
    def from_flat(cls, values: Sequence[float] | np.ndarray, shape: Sequence[int]) -> "NDArray":
        """Shape a flat sequence, in C order: a 1-D array is shared, numbers become float32.

        Raises:
            ValueError: there are more or fewer values than the shape holds.
        """
        flat = values if isinstance(values, np.ndarray) else np.array(values, np.float32)
        if flat.ndim != 1:
            raise ValueError(f"a flat sequence is wanted, got one of {flat.ndim} dimensions")
        return cls(flat).reshape(shape)

    @classmethod
    def from_torch(cls, tensor: "torch.Tensor") -> "NDArray":
        """Share a torch tensor's memory.

        Raises:
            TypeError: an element type that is not supported.
            ValueError: the tensor is on another device than the CPU, or takes part in a gradient.
        """
        if tensor.device.type != "cpu" or tensor.requires_grad:
            raise ValueError(
                f"the tensor is on {tensor.device}{' and requires a gradient' if tensor.requires_grad else ''}; "
                "use tensor.detach().cpu()"
            )
        return cls(tensor.numpy())

    @classmethod
    def from_arrow(cls, tensor: "pa.Tensor") -> "NDArray":
        """Share an Arrow tensor's memory, which Arrow holds to be constant: the array is read-only.

        Raises:
            TypeError: an element type that is not supported.
        """
        array: np.ndarray = tensor.to_numpy()
        array = array.view()
        array.flags.writeable = False
        return cls(array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements (not bytes) from one index of an axis to the next."""
        return tuple(stride // self._array.itemsize for stride in self._array.strides)

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        dtype: np.dtype = self._array.dtype
        return dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._array.size

    def get(self, *indices: int) -> float:
        """Read one element.

        Raises:
            IndexError: not an index for each axis, or one out of its range. Negative ones are out of range.
        """
        return float(self._array[self._checked(indices)])

    def set(self, *indices: int, value: float) -> None:
        """Write one element, in the buffer.

        Raises:
            IndexError: as for `get`.
            ValueError: the buffer is read-only.
        """
        self._array[self._checked(indices)] = value

    def slice(self, axis: int, index: int) -> "NDArray":
        """View the elements at one index of an axis; the result lacks that axis.

        Raises:
            IndexError: no such axis, or no such index of it.
        """
        if not 0 <= axis < self._array.ndim:
            raise IndexError(f"axis must be from 0 to {self._array.ndim - 1}, got {axis}")
        if not 0 <= index < self.shape[axis]:
            raise IndexError(f"index of axis {axis} must be from 0 to {self.shape[axis] - 1}, got {index}")
        # The ellipsis makes a view also of a single element, which numpy would hand out as a scalar.
        place: tuple[Any, ...] = (*(slice(None),) * axis, index, ...)
        return NDArray(self._array[place])

    def subarray(self, lower: Sequence[int], upper: Sequence[int]) -> "NDArray":
        """View a box.

        Args:
            lower: first index of each axis.
            upper: index past the last of each axis.

        Raises:
            IndexError: not an offset for each axis, or not 0 <= lower <= upper <= length.
        """
        if not len(lower) == len(upper) == self._array.ndim:
            raise IndexError(f"{self._array.ndim} lower and upper offsets wanted, got {len(lower)} and {len(upper)}")
        for axis, (low, high, length) in enumerate(zip(lower, upper, self.shape, strict=True)):
            if not 0 <= low <= high <= length:
                raise IndexError(f"axis {axis}: offsets {low} to {high} are not within 0 to {length}")
        box: tuple[Any, ...] = (*(slice(low, high) for low, high in zip(lower, upper, strict=True)), ...)
        return NDArray(self._array[box])

    def transpose(self, axes: Sequence[int] | None = None) -> "NDArray":
        """View with the axes in another order; reversed where none is given.

        Raises:
            ValueError: not a permutation of the axes.
        """
        return NDArray(self._array.transpose(None if axes is None else tuple(axes)))

    def reshape(self, shape: Sequence[int]) -> "NDArray":
        """View with another shape, in C order.

        Raises:
            ValueError: the shape holds another number of elements, or the strides allow no view of it; then
                `copy().reshape(shape)` is what is wanted.
        """
        try:
            return NDArray(np.reshape(self._array, tuple(shape), copy=False))
        except ValueError as error:
            raise ValueError(
                f"shape {self.shape} with strides {self.strides} has no view of shape {tuple(shape)}; "
                "copy() it first, where the number of elements agrees"
            ) from error

    def copy(self) -> "NDArray":
        """Copy into a buffer of its own, in C order."""
        return NDArray(self._array.copy(order="C"))

    def flat_copy(self) -> np.ndarray:
        """Copy the elements, in C order, into a 1-D array."""
        return self._array.flatten()

    def to_flat(self) -> np.ndarray:
        """View the elements as a 1-D array in C order; a copy only where the strides allow no view."""
        return self._array.reshape(-1)

    def add(self, other: "NDArray") -> None:
        """Add another array to this one, in the buffer.

        Raises:
            ValueError: the shapes differ, or the buffer is read-only.
            TypeError: the element types differ.
        """
        self._check_like(other)
        np.add(self._array, other._array, out=self._array)

    def subtract(self, other: "NDArray") -> None:
        """Subtract another array from this one, in the buffer. Raises as `add` does."""
        self._check_like(other)
        np.subtract(self._array, other._array, out=self._array)

    def scalar_divide(self, divisor: float) -> None:
        """Divide every element, in the buffer.

        Raises:
            ValueError: the divisor is 0, or the buffer is read-only.
            TypeError: the elements are integers, whose quotients are none.
        """
        if divisor == 0:
            raise ValueError("the divisor is 0")
        if self.dtype == np.uint8:
            raise TypeError(
                "quotients of uint8 are no uint8; copy into float32 first: NDArray(a.numpy().astype('float32'))"
            )
        np.divide(self._array, divisor, out=self._array)

    @staticmethod
    def plus(one: "NDArray", other: "NDArray") -> "NDArray":
        """Add two arrays into a new one. Raises as `add` does."""
        one._check_like(other)
        return NDArray(np.asarray(one._array + other._array))

    def equals(self, other: "NDArray", tolerance: float = 0.0) -> bool:
        """Whether shapes are the same and no element differs by more than the tolerance. NaN differs from all."""
        if self.shape != other.shape:
            return False
        with np.errstate(invalid="ignore"):  # the gap between infinities of one sign is NaN
            gap = np.abs(self._array.astype(np.float64) - other._array.astype(np.float64))
        same = self._array == other._array
        return bool(np.all(same | (gap <= tolerance)))

    def numpy(self) -> np.ndarray:
        """Share the memory with numpy."""
        return self._array

    def torch(self) -> "torch.Tensor":
        """Share the memory with torch.

        Raises:
            ValueError: a read-only buffer, or a negative stride: torch has neither.
        """
        import torch

        if not self._array.flags.writeable:
            raise ValueError("the buffer is read-only, which a torch tensor cannot be; copy() it first")
        return torch.from_numpy(self._array)

    def arrow(self) -> "pa.Tensor":
        """Share the memory with Arrow."""
        import pyarrow as pa

        return pa.Tensor.from_numpy(self._array)

    def __reduce__(self) -> tuple[type["NDArray"], tuple[np.ndarray]]:
        # numpy pickles the elements of a view, not the buffer behind it.
        return NDArray, (self._array,)

    def __repr__(self) -> str:
        body = np.array2string(self._array, threshold=100, precision=4)
        return f"NDArray(shape={self.shape}, dtype={self.dtype})\n{body}"

    def _checked(self, indices: tuple[int, ...]) -> tuple[int, ...]:
        if len(indices) != self._array.ndim or not all(0 <= i < n for i, n in zip(indices, self.shape, strict=False)):
            raise IndexError(f"indices {indices} are not within shape {self.shape}")
        return indices

    def _check_like(self, other: "NDArray") -> None:
        if self.shape != other.shape:
            raise ValueError(f"shape {self.shape} on one side, {other.shape} on the other")
        if self.dtype != other.dtype:
            raise TypeError(f"element type {self.dtype} on one side, {other.dtype} on the other")
