"""A set in files that the executors keep. In: an RDD whose tasks write them. Out: their handles, by worker."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from pyspark import RDD, Broadcast, SparkContext, StorageLevel

from sparknet.errors import ConfigError, is_interruption
from sparknet.loaders.stored import Handle
from sparknet.scratch import remove_files
from sparknet.session import executor_hosts, readable_errors, worker_slots

H = TypeVar("H", bound=Handle)


@dataclass(frozen=True, kw_only=True)
class Cached(Generic[H]):
    """A set that is cached on the executors.

    Attributes:
        rdd: a handle for each partition, persisted.
        handles: the same, on the driver.
        sent: the same, on their way to whoever asks.
        source: where the set came from; for a person.
        set_id: begins the names of its files.
    """

    rdd: RDD[H]
    handles: tuple[H, ...]
    sent: Broadcast[tuple[H, ...]]
    source: str
    set_id: str

    @property
    def counts(self) -> tuple[int, ...]:
        """Count the samples of each file."""
        return tuple(len(handle) for handle in self.handles)

    def share_sizes(self, workers: int) -> list[int]:
        """Count the samples of each worker's share.

        Args:
            workers: K.

        Raises:
            ConfigError: a worker would have none.
        """
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        counts = self.counts
        sizes = [sum(counts[worker::workers]) for worker in range(workers)]
        if not all(sizes):
            raise ConfigError(
                f"{self.source}: {workers} workers, but only {sum(size > 0 for size in sizes)} would get any of the "
                f"{sum(sizes)} samples; use fewer workers"
            )
        return sizes

    def shares(self, workers: int) -> RDD[list[H]]:
        """Divide the files among workers: file i goes to worker i modulo their number.

        Args:
            workers: K.

        Returns:
            K partitions of one list each. On several hosts Spark keeps to the one where it first ran a partition.

        Raises:
            ConfigError: a worker would have no sample.
        """
        self.share_sizes(workers)
        sc = self.rdd.context
        numbers = sc.parallelize(range(workers), workers)
        if len(executor_hosts(sc)) > 1:
            numbers.persist(StorageLevel.MEMORY_AND_DISK)
        return numbers.map(partial(_share, sent=self.sent, workers=workers))

    def close(self) -> None:
        """Remove the files, and let Spark forget the handles."""
        self.rdd.unpersist()
        self.sent.destroy()
        remove_everywhere(self.rdd.context, self.set_id)


def new_set_id() -> str:
    """Make what begins the names of a set's files."""
    return uuid.uuid4().hex[:12]


def written(rdd: RDD[H], set_id: str, check: Callable[[tuple[H, ...]], None]) -> tuple[H, ...]:
    """Have the files of a set written, and Spark keep their handles; nothing stays where that fails.

    Args:
        rdd: whose tasks write a file each and give its handle.
        set_id: begins the names of the files.
        check: raises an error where the handles cannot be what was to be written.
    """
    rdd.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with readable_errors():
            handles = tuple(rdd.collect())
        check(handles)
    except Exception as error:
        # At Ctrl-C tasks still run, and hold the slots that a removal waits for; their files go with the application.
        if not is_interruption(error):
            rdd.unpersist()
            with suppress(Exception):  # what went wrong may be Spark itself
                remove_everywhere(rdd.context, set_id)
        raise
    return handles


def check_limit(limit_bytes: int | None) -> None:
    """Make sure that something may be written.

    Raises:
        ConfigError: nothing may.
    """
    if limit_bytes is not None and limit_bytes <= 0:
        raise ConfigError(f"the cache limit must be above 0 bytes, got {limit_bytes}")


def remove_everywhere(sc: SparkContext, prefix: str) -> None:
    """Remove the executors' files whose names begin so, on those executors that have a slot free now."""
    tasks = 4 * worker_slots(sc)  # Spark deals them out to all executors alike
    sc.parallelize(range(tasks), tasks).foreach(partial(_remove, prefix=prefix))


def _remove(_: int, prefix: str) -> None:
    remove_files(prefix)


def _share(worker: int, sent: Broadcast[tuple[H, ...]], workers: int) -> list[H]:
    return list(sent.value[worker::workers])
