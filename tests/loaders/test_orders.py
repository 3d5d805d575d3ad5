"""Orders: every sample once an epoch, and the same for whoever asks, whenever."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparknet.errors import ConfigError
from sparknet.loaders.orders import Tail, epochs, order_of, replacement, window

sizes = st.integers(1, 40)
batches = st.integers(1, 60)
keys = st.tuples(st.integers(0, 2**32), st.integers(0, 100))


@given(n=sizes, batch=batches, key=keys, some=st.integers(1, 4))
def test_a_tail_that_is_carried(n: int, batch: int, key: tuple[int, int], some: int) -> None:
    """Minibatches are all full, and every run of n samples from an epoch's start is a permutation."""
    indices = epochs(n, batch, "carried", key)
    drawn = [indices(i) for i in range(-(-n * some // batch))]
    assert {len(found) for found in drawn} == {batch}
    sequence = np.concatenate(drawn)
    for epoch in range(some):
        assert sorted(sequence[epoch * n : (epoch + 1) * n].tolist()) == [*range(n)]


@given(n=sizes, batch=batches, key=keys)
def test_a_tail_that_is_kept(n: int, batch: int, key: tuple[int, int]) -> None:
    indices = epochs(n, batch, "kept", key)
    each = -(-n // batch)
    for epoch in range(3):
        drawn = [indices(epoch * each + i) for i in range(each)]
        assert [len(found) for found in drawn] == [batch] * (each - 1) + [n - batch * (each - 1)]
        assert sorted(np.concatenate(drawn).tolist()) == [*range(n)]


@given(n=sizes, batch=batches, key=keys)
def test_a_tail_that_is_dropped(n: int, batch: int, key: tuple[int, int]) -> None:
    if batch > n:
        with pytest.raises(ConfigError, match=rf"^batch {batch}, but share {key[1]} has {n} images, and the tail"):
            epochs(n, batch, "dropped", key)
        return
    indices = epochs(n, batch, "dropped", key)
    for epoch in range(3):
        drawn = [indices(epoch * (n // batch) + i) for i in range(n // batch)]
        assert {len(found) for found in drawn} == {batch}
        assert Counter(np.concatenate(drawn).tolist()).most_common(1)[0][1] == 1


def test_what_is_dropped_is_other_samples_each_epoch() -> None:
    indices = epochs(10, 9, "dropped", (0, 0))
    assert {i for epoch in range(40) for i in indices(epoch).tolist()} == set(range(10))


@given(n=sizes, batch=batches, tau=st.integers(1, 5), key=keys, round_number=st.integers(0, 10))
def test_a_window_is_a_run_of_the_share(n: int, batch: int, tau: int, key: tuple[int, int], round_number: int) -> None:
    indices = window(n, batch, tau, key)
    run = np.concatenate([indices(round_number * tau + i) for i in range(tau)])
    assert len(run) == tau * batch
    assert np.array_equal(run, (run[0] + np.arange(len(run))) % n)


def test_windows_begin_everywhere() -> None:
    indices = window(7, 2, 3, (0, 0))
    assert {int(indices(3 * round_number)[0]) for round_number in range(100)} == set(range(7))


def test_replacement_draws_from_all_alike() -> None:
    indices = replacement(5, 100, (0, 0))
    counts = Counter(np.concatenate([indices(i) for i in range(100)]).tolist())
    assert set(counts) == set(range(5))
    assert all(abs(count - 2000) < 200 for count in counts.values())  # five standard deviations


@given(
    name=st.sampled_from(["epoch", "window", "replacement"]),
    tail=st.sampled_from(["carried", "kept", "dropped"]),
    n=st.integers(20, 40),
    iterations=st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
    key=keys,
)
def test_an_iteration_is_the_same_whenever_it_is_asked_for(
    name: str, tail: Tail, n: int, iterations: list[int], key: tuple[int, int]
) -> None:
    """In mid-epoch, a million iterations on, out of order, by another that has drawn nothing before."""
    one = order_of(name, tail, samples=n, batch=7, tau=3, key=key)  # type: ignore[arg-type]
    found = [one(iteration).tolist() for iteration in iterations]
    for iteration, indices in reversed([*zip(iterations, found, strict=True)]):
        other = order_of(name, tail, samples=n, batch=7, tau=3, key=key)  # type: ignore[arg-type]
        assert other(iteration).tolist() == indices
        assert one(iteration).tolist() == indices
        assert min(indices) >= 0
        assert max(indices) < n


@pytest.mark.parametrize("other", [(1, 0), (0, 1)])
def test_another_seed_or_share_has_another_order(other: tuple[int, int]) -> None:
    for name in ("epoch", "window", "replacement"):
        first, second = (order_of(name, "carried", samples=100, batch=10, tau=1, key=key) for key in ((0, 0), other))
        assert any(first(i).tolist() != second(i).tolist() for i in range(3))


def test_epochs_differ() -> None:
    indices = epochs(20, 20, "carried", (0, 0))
    assert indices(0).tolist() != indices(1).tolist()
