"""Around a command of the command line: Spark started and stopped, its log, Ctrl-C."""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from pyspark import SparkContext
from rich.console import Console

from sparknet.errors import ConfigError, SessionError, SparkNetError, StoppedError
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
    handle, name = tempfile.mkstemp(prefix="sparknet-", suffix=".log")
    os.close(handle)
    log = Path(name)
    if screen.is_terminal:
        screen.print("starting Spark")
    pressed = _Interrupts()
    try:
        try:
            spark = start(master, log=log, conf={key: value for key, _, value in pairs})
        except BaseException:
            if pressed.count:
                _end_children()
            raise
        signal.signal(signal.SIGINT, pressed)  # PySpark has put a handler of its own there
        try:
            yield spark.sparkContext
        finally:
            # A terminal's Ctrl-C ends the JVM too.
            with suppress(Exception) if pressed.count else nullcontext():
                spark.stop()
    except BaseException as error:
        # What we raise is told in full by its own line, but for what Spark itself failed at.
        if pressed.count or (isinstance(error, SparkNetError) and not isinstance(error, SessionError)):
            log.unlink(missing_ok=True)
        else:
            error.add_note(f"Spark's log is {log}")
        if pressed.count:
            # Interrupted, py4j goes on to fail at whatever it does next.
            raise StoppedError("stopped") from error
        raise
    finally:
        signal.signal(signal.SIGINT, pressed.before)
    log.unlink(missing_ok=True)


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

    def __call__(self, *_: object) -> None:
        self.count += 1
        if self.count > 1:
            os._exit(StoppedError.exit_status)  # the JVM ends when its stdin does
        raise KeyboardInterrupt


def _is_no_interruption(record: logging.LogRecord) -> bool:
    return "KeyboardInterrupt while sending command" not in record.getMessage()
