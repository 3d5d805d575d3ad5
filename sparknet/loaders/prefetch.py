"""Items made ahead of their use, by a background thread. In and out: the same items in the same order."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


def prefetched(items: Iterator[_T], ahead: int) -> Generator[_T, None, None]:
    """Make items ahead of their use; one that takes long is waited for only when those before it are used up.

    An error in making an item is raised where the item would have come. Whoever stops early closes the result: no
    thread is left then.

    Args:
        items: to be made. Only one thread at a time asks for the next.
        ahead: how many are made before they are asked for; at most `ahead` + 1 are in use at the same time. None is
            where 0: the caller's own thread makes each.
    """
    if not ahead:
        yield from items
        return
    end = object()
    with ThreadPoolExecutor(1, "prefetch") as pool:
        coming: deque[Future[object]] = deque(pool.submit(next, items, end) for _ in range(ahead))
        try:
            while (item := coming.popleft().result()) is not end:
                coming.append(pool.submit(next, items, end))
                yield item  # type: ignore[misc]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
