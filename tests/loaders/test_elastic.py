"""The order `global`: each sample once an epoch at any K, also where K changes on the way."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparknet.errors import ConfigError
from sparknet.loaders.augment import Augmentation
from sparknet.loaders.elastic import VIRTUAL_PARTITIONS, GlobalOrder, GlobalShare, Turn, partition_sizes
from sparknet.loaders.minibatch import Minibatch
from sparknet.loaders.orders import Tail, epochs
from tests.loaders.test_minibatch import SIDE, images_of, kept, same, write_block

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)
rounds = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=20)


def samples_of(turn: Turn, counts: list[int], batch: int, tail: Tail) -> list[tuple[int, int]]:
    """(partition, index) of each sample of a minibatch."""
    indices = epochs(counts[turn.partition], batch, tail, (1, turn.partition))(turn.iteration)
    return [(turn.partition, int(index)) for index in indices]


@given(counts=sizes, batch=st.integers(1, 20), plan=rounds)
def test_each_sample_once_an_epoch_whatever_k_and_tau(
    counts: list[int], batch: int, plan: list[tuple[int, int]]
) -> None:
    """Rounds of any K and tau, one after the other: what was drawn is a run of epochs, each a permutation."""
    order = GlobalOrder(counts, batch, "kept")
    position, drawn = 0, []
    for workers, tau in plan:
        dealt = order.deal(position, workers, tau)
        assert [len(turns) for turns in dealt] == [tau] * workers
        window = [order.turn(place) for place in range(position, position + workers * tau)]
        assert sorted(turn for turns in dealt for turn in turns) == sorted(window)
        drawn += window
        position += workers * tau
    every = {(partition, index) for partition, count in enumerate(counts) for index in range(count)}
    for start in range(0, len(drawn), len(order)):
        epoch = [
            sample for turn in drawn[start : start + len(order)] for sample in samples_of(turn, counts, batch, "kept")
        ]
        assert len(epoch) == len(set(epoch))
        assert set(epoch) <= every
        if start + len(order) <= len(drawn):
            assert set(epoch) == every


@given(counts=sizes, batch=st.integers(1, 20))
def test_what_is_dropped_is_less_than_a_minibatch_of_each_partition(counts: list[int], batch: int) -> None:
    if batch > max(counts):
        with pytest.raises(ConfigError, match=f"^batch {batch}, but no partition has more than {max(counts)} images"):
            GlobalOrder(counts, batch, "dropped")
        return
    order = GlobalOrder(counts, batch, "dropped")
    seen = Counter(s for place in range(len(order)) for s in samples_of(order.turn(place), counts, batch, "dropped"))
    assert set(seen.values()) == {1}
    by_partition = Counter(partition for partition, _ in seen)
    assert all(by_partition[partition] == count - count % batch for partition, count in enumerate(counts))


@given(position=st.integers(0, 10**9), workers=st.sampled_from([1, 2, 3, 4, 6, 12]), tau=st.integers(1, 9))
def test_workers_draw_from_their_own_where_k_divides_the_partitions(position: int, workers: int, tau: int) -> None:
    order = GlobalOrder([20] * 12, 5, "kept")
    for worker, turns in enumerate(order.deal(position, workers, tau)):
        assert {turn.partition % workers for turn in turns} == {worker}


@given(position=st.integers(0, 10**9))
def test_a_place_is_found_at_once(position: int) -> None:
    """In mid-epoch, a billion minibatches on; iterations of a partition follow one another."""
    counts = [7, 0, 3, 12]
    order = GlobalOrder(counts, 4, "kept")
    assert len(order) == 2 + 0 + 1 + 3
    turn = order.turn(position)
    later = order.turn(position + len(order))
    assert later == Turn(turn.partition, turn.iteration + [2, 0, 1, 3][turn.partition])


def test_partitions_are_the_same_at_any_k() -> None:
    assert partition_sizes([3, 1, 2]) == [3, 1, 2]
    many = partition_sizes([1] * (2 * VIRTUAL_PARTITIONS + 5))
    assert many == [3] * 5 + [2] * (VIRTUAL_PARTITIONS - 5)


def test_a_worker_draws_its_turns(tmp_path: Path) -> None:
    blocks = [write_block(tmp_path, range(a, b)) for a, b in ((0, 5), (5, 5), (5, 12))]
    order = GlobalOrder(partition_sizes([5, 0, 7]), 3, "kept")
    drawn = {}
    for workers in (1, 2):
        found: list[tuple[Turn, Minibatch]] = []
        for worker, turns in enumerate(order.deal(0, workers, len(order) // workers + 1)):
            batches = GlobalShare(blocks, turns, 1, worker).minibatches(
                99, len(turns), batch=3, augmentation=Augmentation(crop=SIDE, mirror=True), tail="kept"
            )
            found += zip(turns, kept(batches), strict=True)
        drawn[workers] = dict(found)
    for turn, batch in drawn[1].items():
        expected = images_of(range(12))[batch.labels]
        flags = batch.choices.mirrored[:, None, None, None]
        assert np.array_equal(batch.images, np.where(flags, expected[:, :, ::-1], expected))
        if turn in drawn[2]:  # cropped and mirrored alike, whoever draws it
            assert same(batch, drawn[2][turn])
    labels = [label for place in range(len(order)) for label in drawn[1][order.turn(place)].labels.tolist()]
    assert sorted(labels) == [*range(12)]
