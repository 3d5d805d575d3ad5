import io
import threading
import time
from pathlib import Path

import pytest
from pyspark import SparkContext
from rich.console import Console

from sparknet.train.report import RoundProgress, console, spark_progress
from sparknet.train.trainer import RoundMetrics


def recorded(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=160, highlight=False, no_color=True), out


def round_of(number: int, **more: float) -> RoundMetrics:
    return RoundMetrics(
        round=number,
        images=2000 * number,
        loss=1.25,
        rate=0.01,
        seconds=2.0,
        compute_s=1.25,
        data_s=0.25,
        communicate_s=0.5,
        momentum_lost=int(more.pop("momentum_lost", 0)),
        **more,
    )


def test_a_terminal_sees_a_bar_with_the_rounds_numbers() -> None:
    screen, out = recorded(terminal=True)
    with RoundProgress(40, screen) as progress:
        for number in range(1, 5):
            progress(round_of(number))
    last = out.getvalue().split("\r")[-1].splitlines()[0]
    assert "starting workers" in out.getvalue()
    assert "4/40" in last
    assert "loss 1.250  1,000 images/s  training 6 s  communicating 2 s" in last


def test_a_file_gets_a_line_an_evaluation_and_no_bar() -> None:
    screen, out = recorded(terminal=False)
    with RoundProgress(40, screen) as progress:
        progress(round_of(1))
        progress(round_of(2, top1=0.12345, top5=1.0, test_loss=2.0))
    assert out.getvalue() == "round  2/40  loss 1.250  top-1 12.35%  top-5 100.00%  1,000 images/s\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_lost_momentum_is_told(terminal: bool) -> None:
    screen, out = recorded(terminal)
    with RoundProgress(9, screen) as progress:
        progress(round_of(1, momentum_lost=0))
        progress(round_of(2, momentum_lost=3))
    assert "round 2: 3 worker(s) lost their kept momentum and began from zero" in out.getvalue()
    assert "round 1: " not in out.getvalue()


def test_the_bar_ends_when_training_fails() -> None:
    screen, out = recorded(terminal=True)
    progress = RoundProgress(9, screen)
    with pytest.raises(KeyError), progress:
        progress(round_of(1))
        raise KeyError("x")
    assert not progress._progress.live.is_started
    assert "1/9" in out.getvalue()


def test_the_console_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("a long line of 123 numbers " * 9)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "a long line of 123 numbers " * 9 + "\n"


def slow(folder: str, index: int) -> int:
    """Task 0 ends at once; the others wait until they are told to."""
    while index and not (Path(folder) / "go").exists():
        time.sleep(0.02)
    return index


@pytest.mark.parametrize("terminal", [True, False])
def test_the_tasks_of_a_spark_job_are_counted_while_it_runs(terminal: bool, sc: SparkContext, tmp_path: Path) -> None:
    screen, out = recorded(terminal)
    folder = str(tmp_path)

    def release() -> None:
        # Until the bar was seen at one of two; without a bar, at once.
        until = time.monotonic() + 60
        while terminal and "1/2" not in out.getvalue() and time.monotonic() < until:
            time.sleep(0.02)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=release)
    thread.start()
    with spark_progress(sc, "counting sheep", screen):
        assert sc.parallelize([0, 1], 2).map(lambda index: slow(folder, index)).collect() == [0, 1]
    thread.join()
    if terminal:
        assert "counting sheep" in out.getvalue()
        assert "1/2" in out.getvalue()
    else:
        assert out.getvalue().strip() == ""
    assert "sparknet-progress" not in {thread.name for thread in threading.enumerate()}


def test_the_watch_ends_when_the_job_fails(sc: SparkContext) -> None:
    screen, _ = recorded(terminal=True)
    with pytest.raises(KeyError), spark_progress(sc, "failing", screen):
        raise KeyError("x")
    assert "sparknet-progress" not in {thread.name for thread in threading.enumerate()}
