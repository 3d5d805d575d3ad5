"""Around a command of the command line: Spark started and stopped, its log, Ctrl-C."""

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from pyspark import SparkContext
from rich.console import Console

from sparknet.errors import ConfigError, SessionError, SparkNetError, StoppedError
from sparknet.scratch import own_folder
from sparknet.session import start


@contextmanager
def running_spark(master: str | None, conf: Sequence[str] | None, screen: Console) -> Iterator[SparkContext]:
    """Start Spark for a command and stop it after; what its JVM prints is kept only if the command fails.

    Args:
        master: Spark's master URL; the default one where None.
        conf: Spark's settings, `KEY=VALUE` each.
        screen: to say so on.

    Raises:
        ConfigError: a setting is of another form.
        StoppedError: Ctrl-C was pressed.
        JavaError, SessionError: as for `sparknet.session.start`.
    """
    pairs = [pair.partition("=") for pair in conf or ()]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise ConfigError(f"--conf takes KEY=VALUE, got {key + equals!r}")
    folder = own_folder(Path(tempfile.gettempdir()))
    log = folder / "spark.log"
    if screen.is_terminal:
        screen.print("starting Spark")
    pressed = _Interrupts()
    try:
        try:
            sc = start(master, log=log, conf={key: value for key, _, value in pairs})
        except BaseException:
            if pressed.count:
                _end_children()
            raise
        signal.signal(signal.SIGINT, pressed)  # PySpark has put a handler of its own there
        try:
            yield sc
        finally:
            # A terminal's Ctrl-C ends the JVM too.
            with suppress(Exception) if pressed.count else nullcontext():
                sc.stop()
    except BaseException as error:
        # What we raise is told in full by its own line, but for what Spark itself failed at.
        told = isinstance(error, SparkNetError) and not isinstance(error, SessionError)
        if not pressed.count and not told and log.exists():
            handle, kept = tempfile.mkstemp(prefix="sparknet-", suffix=".log")
            os.close(handle)
            error.add_note(f"Spark's log is {shutil.move(log, kept)}")
        if pressed.count:
            # Interrupted, py4j goes on to fail at whatever it does next.
            raise StoppedError("stopped") from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGINT, pressed.before)


def _end_children() -> None:
    """End the processes that this one started: a JVM that nobody waits for any more does not end by itself."""
    for sign, patience_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 0.0)):  # at the first it takes its folders away
        children = [
            int(child) for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()
        ]
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, sign)
        end = time.monotonic() + patience_s
        while any(_runs(child) for child in children) and time.monotonic() < end:
            time.sleep(0.02)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class _Interrupts:
    """Handles SIGINT: the first is a KeyboardInterrupt; the second ends at once, whatever is being put in order."""

    def __init__(self) -> None:
        self.count = 0
        self.before = signal.signal(signal.SIGINT, self)
        # py4j logs the interruption of a call, in two places, with stack traces.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_no_interruption)

    def __call__(self, _: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            os._exit(StoppedError.exit_status)  # the JVM ends when its stdin does
        _interrupt(0, frame)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, here or, where Python would lose it, a little later."""
    if _loses_exceptions(frame):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        return
    raise KeyboardInterrupt


def _loses_exceptions(frame: FrameType | None) -> bool:
    """Whether it is a finalizer, or one of the functions that Python calls around a fork."""
    while frame is not None:
        above = frame.f_back
        if frame.f_code.co_name == "__del__" or (above is not None and above.f_code.co_name == "_execute_child"):
            return True
        frame = above
    return False


def _is_no_interruption(record: logging.LogRecord) -> bool:
    return "KeyboardInterrupt while sending command" not in record.getMessage()
