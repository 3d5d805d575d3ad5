"""Named weights over one flat buffer: what travels between driver and workers, and what is averaged."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, tuple[int, ...]]


class WeightCollection(Mapping[str, np.ndarray]):
    """Named tensors, side by side in one flat buffer.

    Each tensor is a view of the buffer: writing to it writes the buffer. Arithmetic makes a new collection and first
    checks that names and shapes agree.

    Args:
        shapes: of the tensors by name, in the order in which they lie in the buffer.
        flat: the buffer, 1-D, float32 or float64, contiguous; taken as it is, not copied. Zeros (float32) where None.

    Raises:
        ValueError: the buffer's length or dtype does not fit.
    """

    def __init__(self, shapes: Shapes, flat: np.ndarray | None = None) -> None:
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        size = sum(math.prod(shape) for shape in self._shapes.values())
        self.flat = np.zeros(size, np.float32) if flat is None else flat
        if self.flat.ndim != 1 or self.flat.dtype not in (np.float32, np.float64) or not self.flat.flags.c_contiguous:
            raise ValueError(
                f"the buffer must be 1-D, contiguous, float32 or float64; got {self.flat.ndim}-D {self.flat.dtype}"
            )
        if len(self.flat) != size:
            raise ValueError(f"the buffer holds {len(self.flat)} elements, the shapes ask for {size}")
        self._views: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in self._shapes.items():
            stop = start + math.prod(shape)
            self._views[name] = self.flat[start:stop].reshape(shape)
            start = stop

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "WeightCollection":
        """Copy arrays into one buffer: float64 where any of them is, else float32.

        Args:
            arrays: of any shape, float16, float32 or float64, by name.

        Raises:
            ValueError: an array has another dtype; float32 would round integers above 2^24 in silence.
        """
        for name, array in arrays.items():
            if array.dtype not in (np.float16, np.float32, np.float64):
                raise ValueError(f"tensor {name} must be float16, float32 or float64, got {array.dtype}")
        wide = any(array.dtype == np.float64 for array in arrays.values())
        parts = [np.ravel(array) for array in arrays.values()]
        flat = np.concatenate(parts, dtype=np.float64 if wide else np.float32, casting="same_kind") if parts else None
        return cls({name: array.shape for name, array in arrays.items()}, flat)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __reduce__(self) -> tuple[type["WeightCollection"], tuple[Shapes, np.ndarray]]:
        return WeightCollection, (self._shapes, self.flat)

    def __repr__(self) -> str:
        return f"WeightCollection({len(self)} tensors, {self.flat.size} {self.flat.dtype} elements)"

    # numpy's scalars would take a Mapping for an array of objects; so they leave `scalar * collection` to us.
    __array_ufunc__ = None

    # Equality of floats is asked for with a tolerance (`allclose`); a Mapping's would compare arrays and fail.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor, in the buffer's order."""
        return dict(self._shapes)

    def torch(self) -> "dict[str, torch.Tensor]":
        """View the tensors as torch's, sharing memory with the buffer."""
        import torch

        return {name: torch.from_numpy(view) for name, view in self._views.items()}

    def with_flat(self, flat: np.ndarray) -> "WeightCollection":
        """Lay the same names and shapes over another buffer, which is not copied.

        Raises:
            ValueError: the buffer's length or dtype does not fit.
        """
        return WeightCollection(self._shapes, flat)

    def copy(self) -> "WeightCollection":
        """Copy into a buffer of its own."""
        return self.with_flat(self.flat.copy())

    def __add__(self, other: "WeightCollection") -> "WeightCollection":
        self.check_like(other)
        return self.with_flat(self.flat + other.flat)

    def __sub__(self, other: "WeightCollection") -> "WeightCollection":
        self.check_like(other)
        return self.with_flat(self.flat - other.flat)

    def __mul__(self, factor: float) -> "WeightCollection":
        return self.with_flat(self.flat * self.flat.dtype.type(factor))

    __rmul__ = __mul__

    def allclose(self, other: "WeightCollection", rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Whether every element is within `atol + rtol * |other|` of the other's.

        Raises:
            ValueError: names or shapes differ.
        """
        self.check_like(other)
        return bool(np.allclose(self.flat, other.flat, rtol=rtol, atol=atol))

    def check_like(self, other: "WeightCollection") -> None:
        """Make sure that the other has the same tensors in the same order.

        Raises:
            ValueError: not so; the message names the first tensor that differs.
        """
        for mine, theirs in zip(self._shapes.items(), other._shapes.items(), strict=False):
            if mine[0] != theirs[0]:
                raise ValueError(f"tensor {mine[0]} on one side is {theirs[0]} on the other")
            if mine[1] != theirs[1]:
                raise ValueError(f"tensor {mine[0]} has shape {mine[1]} on one side, {theirs[1]} on the other")
        if len(self) != len(other):
            longer = max((self, other), key=len)
            odd = list(longer)[min(len(self), len(other))]
            raise ValueError(f"tensor {odd} is on one side only ({len(self)} tensors against {len(other)})")


def weighted_average(collections: Iterable[WeightCollection], weights: Sequence[float]) -> WeightCollection:
    """Average collections, each by its weight, in the first's dtype.

    Args:
        collections: at least one, alike in names and shapes; each is used as it comes and then let go.
        weights: one for each, not negative, not all zero. They need not sum to 1.

    Raises:
        ValueError: names or shapes differ (the tensor is named), or the weights are not as described.
    """
    iterator = iter(collections)
    first = next(iterator, None)
    if first is None:
        raise ValueError("no collection to average")
    like: WeightCollection = first

    def buffers() -> Iterator[np.ndarray]:
        yield like.flat
        for collection in iterator:
            like.check_like(collection)
            yield collection.flat

    return like.with_flat(average_flat(buffers(), weights))


def average_flat(buffers: Iterable[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Average arrays of one length, each by its weight.

    The sum runs in float64, so that the average of identical float32 arrays is exactly that array. That of float64
    ones is it but for the last bit.

    Args:
        buffers: at least one, 1-D; each is used as it comes and then let go.
        weights: one for each, not negative, not all zero.

    Returns:
        1-D, in the first's dtype.

    Raises:
        ValueError: lengths differ, or the weights are not as described.
    """
    total = float(sum(weights))
    if not (all(weight >= 0 for weight in weights) and 0 < total < math.inf):
        raise ValueError(f"weights must be finite, not negative and not all zero, got {list(weights)}")
    acc: np.ndarray | None = None
    dtype = np.dtype(np.float64)
    for buffer, weight in zip(buffers, weights, strict=True):
        if acc is None:
            acc, dtype = np.zeros(len(buffer), np.float64), buffer.dtype
        if len(buffer) != len(acc):  # numpy would spread a single element over all
            raise ValueError(f"cannot average arrays of {len(acc)} and of {len(buffer)} elements")
        acc += np.multiply(buffer, weight, dtype=np.float64)
    if acc is None:
        raise ValueError("nothing to average")
    acc /= total
    return acc.astype(dtype)
