"""The command `sparknet`, which tells when it is in a given phase, and stays there: for tests that stop it there.

`python -m tests.slowed_command PHASE MARK WORDS...`: the file MARK is there once the phase has begun.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image as PillowImage

from sparknet import cli
from sparknet.loaders import blocks, survey
from sparknet.train import evaluate
from sparknet.train.exchange import spark

# What Spark's tasks of a phase run. A task finds it by its name: what is changed here is changed there by being sent.
TASKS: dict[str, tuple[Any, str]] = {
    "reading": (survey, "_survey_part"),
    "decoding": (blocks, "write_block"),
    "averaging": (blocks, "_sum"),
    "training": (spark, "_train_task"),
    "evaluating": (evaluate, "_score_task"),
}

FIRST_CHECKPOINT = 8
"""Files that are flushed to disk up to the end of a run's first checkpoint."""


def stay(mark: Path) -> None:
    mark.touch()
    time.sleep(120)


def slowed(original: Callable[..., Any], mark: Path, drains: bool) -> Callable[..., Any]:
    if not drains:

        def task(*args: Any, **kwargs: Any) -> Any:
            stay(mark)
            return original(*args, **kwargs)

        return task

    def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
        stay(mark)
        result: Iterable[Any] = original(*args, **kwargs)
        yield from result

    return generator


def prepare(phase: str, mark: Path) -> None:
    if phase in TASKS:
        module, name = TASKS[phase]
        setattr(module, name, slowed(getattr(module, name), mark, drains=phase != "evaluating"))
    elif phase == "checkpoint":
        flushed = 0
        flush = os.fsync

        def on_flush(descriptor: int) -> None:
            nonlocal flushed
            flushed += 1
            if flushed > FIRST_CHECKPOINT:
                stay(mark)
            flush(descriptor)

        os.fsync = on_flush  # type: ignore[assignment]
    elif phase == "sheet":
        save = PillowImage.Image.save

        def on_save(image: PillowImage.Image, path: Any, *args: Any) -> None:
            if isinstance(path, Path):  # not the thumbnails, which go to memory
                path.write_bytes(b"half")
                stay(mark)
            save(image, path, *args)

        PillowImage.Image.save = on_save  # type: ignore[method-assign, assignment]
    elif phase == "importing":
        mark.touch()
    else:
        assert phase in ("starting", "opening"), phase


if __name__ == "__main__":
    prepare(sys.argv[1], Path(sys.argv[2]))
    del sys.argv[1:3]
    cli.main()
