"""Every error that SparkNet raises on purpose. Each message names the thing, its value, and what to do.

The command line prints the message as one line and exits with `exit_status`: 2 for a person's mistake, 1 for a
failure of the program or of the machine.
"""

import re


class SparkNetError(Exception):
    """The root of the tree."""

    exit_status = 1


class StoppedError(SparkNetError):
    """A person pressed Ctrl-C."""

    exit_status = 130  # what a shell gives for SIGINT


class ConfigError(SparkNetError, ValueError):
    """An option or an argument that cannot be meant."""

    exit_status = 2


class SourceError(SparkNetError):
    """A URL that cannot be listed, opened or read."""

    exit_status = 2


class ShardError(SourceError):
    """A damaged or truncated shard. The message names the file and the offset."""


class LabelError(SparkNetError):
    """A label file that is malformed or does not fit the data."""

    exit_status = 2


class DecodeError(SparkNetError):
    """Bytes that are not an image which can be used. One bad sample, never the end of a pass."""


class SampleError(SparkNetError):
    """A pass over the samples whose counts do not add up, or that left nothing to use."""

    exit_status = 2


class JavaError(SparkNetError):
    """No Java that Spark can run on."""

    exit_status = 2


class SessionError(SparkNetError):
    """Spark could not be started, or its executors cannot run SparkNet."""


class RunError(SparkNetError):
    """A run's folder that cannot be written, or is not one."""

    exit_status = 2


class DivergedError(SparkNetError):
    """The loss of a worker is no longer a finite number."""


def is_interruption(error: BaseException | None) -> bool:
    """Whether an error comes of Ctrl-C: py4j may fail at handling one, and raises that failure instead."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def cause_in(text: str) -> str | None:
    """Find the last error that a stack trace, or a log with stack traces, names: Python's or a JVM's.

    Returns:
        The line that says what was wrong; None where there is none.
    """
    lines = [line.strip().removeprefix("Caused by: ").removeprefix(": ") for line in text.splitlines()]
    causes = [line for line in lines if re.match(r"(Exception in .*|[\w.$]*(Exception|Error)\b.*: )", line)]
    return causes[-1] if causes else None
