"""What a person sees of a run while it goes on: on stderr, so that stdout stays for results."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from sparknet.train.trainer import RoundMetrics

_POLL_S = 0.2


def console() -> Console:
    """Make a console on stderr."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def spark_progress(sc: SparkContext, title: str, out: Console) -> Iterator[None]:
    """Show how many tasks of the Spark jobs run in this block are done.

    Args:
        sc: where they run.
        title: what they do.
        out: to show it on.
    """
    if not out.is_terminal:
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    finished = threading.Event()
    with Progress(*columns, console=out, transient=True) as progress:
        bar = progress.add_task(title, total=None)

        def poll() -> None:
            tracker, seen = sc.statusTracker(), dict[int, tuple[int, int]]()
            while not finished.wait(_POLL_S):
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is not None:
                        seen[stage] = (info.numCompletedTasks, info.numTasks)
                if seen:
                    # A stage that is no longer active was finished.
                    done = sum(
                        total if stage not in tracker.getActiveStageIds() else n for stage, (n, total) in seen.items()
                    )
                    progress.update(bar, completed=done, total=sum(total for _, total in seen.values()))

        thread = threading.Thread(target=poll, name="sparknet-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()


class RoundProgress:
    """A bar over the rounds: loss, images/s, seconds training against communicating; and a line an evaluation.

    Args:
        rounds: that there will be.
        out: to show it on.
    """

    def __init__(self, rounds: int, out: Console) -> None:
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            console=out,
            disable=not out.is_terminal,  # a file gets a line an evaluation, no bar
        )
        self._bar = self._progress.add_task("round", total=rounds, numbers="starting workers")
        self._rounds = rounds
        self._seen = 0
        self._seconds = self._training = self._communicating = 0.0

    def __enter__(self) -> "RoundProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, metrics: RoundMetrics) -> None:
        """Take in a finished round."""
        self._seen += 1
        self._seconds += metrics.seconds
        self._training += metrics.compute_s + metrics.data_s
        self._communicating += metrics.communicate_s
        # All rounds have as many images; those before a resumption took none of these seconds.
        speed = metrics.images / metrics.round * self._seen / self._seconds
        self._progress.update(
            self._bar,
            completed=metrics.round,
            numbers=f"loss {metrics.loss:.3f}  {speed:,.0f} images/s  training {self._training:.0f} s  "
            f"communicating {self._communicating:.0f} s",
        )
        if metrics.momentum_lost:
            self._progress.console.print(
                f"round {metrics.round}: {metrics.momentum_lost} worker(s) lost their kept momentum and began from zero"
            )
        if metrics.top1 is None and metrics.round == self._rounds:
            self._progress.console.print(f"round {self._rounds}/{self._rounds}  loss {metrics.loss:.3f}")
        if metrics.top1 is not None and metrics.top5 is not None:
            self._progress.console.print(
                f"round {metrics.round:>{len(str(self._rounds))}}/{self._rounds}  loss {metrics.loss:.3f}  "
                f"top-1 {metrics.top1:.2%}  top-5 {metrics.top5:.2%}  {speed:,.0f} images/s"
            )
