"""Items made ahead: the same, in the same order; errors come through; no thread is left."""

import threading
import time
from collections.abc import Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparknet.errors import SourceError
from sparknet.loaders.prefetch import prefetched


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@given(items=st.lists(st.one_of(st.none(), st.integers())), ahead=st.integers(0, 5))
def test_the_same_items_in_the_same_order(items: list[int | None], ahead: int) -> None:
    assert list(prefetched(iter(items), ahead)) == items
    assert threads() == []


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_are_made_than_asked_for(ahead: int) -> None:
    """What is used, and `ahead` others: as many buffers are enough."""
    made = []

    def make() -> Iterator[int]:
        for i in range(20):
            made.append(i)
            yield i

    items = prefetched(make(), ahead)
    for i in range(10):
        assert next(items) == i
        time.sleep(0.01)
        assert len(made) == i + 1 + ahead
    items.close()
    assert threads() == []


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_comes_where_the_item_would_have(ahead: int) -> None:
    def make() -> Iterator[int]:
        yield 1
        try:
            raise OSError("no disk")
        except OSError as error:
            raise SourceError("no image") from error

    items = prefetched(make(), ahead)
    assert next(items) == 1
    with pytest.raises(SourceError, match="no image") as raised:
        next(items)
    assert isinstance(raised.value.__cause__, OSError)
    assert "make" in [entry.name for entry in raised.traceback]
    assert threads() == []


def test_stopping_early_leaves_no_thread() -> None:
    stopped = threading.Event()

    def make() -> Generator[int, None, None]:
        try:
            yield from range(1000)
        finally:
            stopped.set()

    source = make()
    for item in prefetched(source, 3):
        if item == 5:
            break
    assert threads() == []
    source.close()
    assert stopped.is_set()


def test_a_slow_item_is_waited_for_only_when_those_before_it_are_used_up() -> None:
    slow = threading.Event()

    def make() -> Iterator[int]:
        for i in range(6):
            if i == 3:
                slow.wait(10)
            yield i

    items = prefetched(make(), 3)
    assert [next(items) for _ in range(2)] == [0, 1]
    threading.Timer(0.2, slow.set).start()
    assert list(items) == [2, 3, 4, 5]
