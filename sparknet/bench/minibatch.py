"""How fast minibatches come from cached images, on one core, beside what the machine can do at all and other loaders.

All ways run in turns, in one run, on the same images: compare the ratios, not the images/s.
"""

import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset

from sparknet.bench.memory import SMAPS, Memory
from sparknet.bench.memory import measure as measure_memory
from sparknet.errors import ConfigError
from sparknet.loaders.augment import Augmentation
from sparknet.loaders.block import Block, write_images
from sparknet.loaders.convert import ToTensor
from sparknet.loaders.minibatch import Share
from sparknet.loaders.petastorm_compat import install
from sparknet.loaders.prefetch import prefetched
from sparknet.scratch import own_folder

SIDE, CROP, BATCH = 256, 227, 256

TAU, EATEN = 50, 5000
"""Iterations of the stub's round, and images/s that it eats."""

TIMES = 16
"""How many times as large the share is that memory is compared at."""

# Images of a block: those of a partition of ImageNet are as many.
_BLOCK = 512

_DATALOADER_WORKERS = 2

COPY, FILL = "straight copy of the crops", "filling the same float32 bytes"


class Way(NamedTuple):
    """A way to get minibatches.

    Attributes:
        name: what it is called in the table.
        limit: the way that it is compared with.
        take: gets the next minibatch.
        cores: that it keeps busy.
    """

    name: str
    limit: str
    take: Callable[[], object]
    cores: int = 1


class Rate(NamedTuple):
    """A line of the table.

    Attributes:
        name: of the way.
        images_per_s: on each core, the median over the turns.
        limit: the way that it is compared with.
        ratio: to that, the median over the turns.
    """

    name: str
    images_per_s: float
    limit: str
    ratio: float


class Wait(NamedTuple):
    """How long a network that eats minibatches as fast as a quick device waits for them.

    Attributes:
        name: of what it eats.
        share: of its time spent waiting, the median over the turns.
    """

    name: str
    share: float


class Measured(NamedTuple):
    """What the benchmark came to."""

    rates: list[Rate]
    waits: list[Wait]
    memory: list[Memory]


def measure(images: int = 2048, turns: int = 5, seconds: float = 1.0, others: bool = True) -> Measured:
    """Measure all ways.

    Args:
        images: of 256 x 256 pixels, random; a whole number of minibatches of 256.
        turns: of each way.
        seconds: of each turn.
        others: whether other loaders are measured too.

    Raises:
        ConfigError: images is not a multiple of 256.
    """
    if images < BATCH or images % BATCH:
        raise ConfigError(f"images must be a multiple of the minibatch, {BATCH}, got {images}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        folder = own_folder(Path(tempfile.gettempdir()))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        blocks = [_noise_block(folder, start, min(start + _BLOCK, images)) for start in range(0, images, _BLOCK)]
        ways = [*_limits(blocks), *_ours(blocks)]
        rates = _in_turns(ways, turns, seconds)
        waits = [Wait(name, statistics.median(_waiting(way) for _ in range(turns))) for name, way in _eaten(blocks)]
        memory = measure_memory(blocks, BATCH, CROP, TIMES) if SMAPS.exists() else []
        if others:  # they go on reading ahead while another has its turn: each for itself
            for make in (_dataloader, _petastorm):
                with make(blocks, folder) as way:
                    ways.append(way)
                    rates |= _in_turns([way], turns, seconds)
    compared = [
        Rate(
            way.name,
            statistics.median(rates[way.name]),
            way.limit,
            statistics.median(one / limit for one, limit in zip(rates[way.name], rates[way.limit], strict=True)),
        )
        for way in ways
    ]
    return Measured(compared, waits, memory)


def _waiting(make: Callable[[], Iterator[object]]) -> float:
    """Run a round of a stub that sleeps for as long as a device that eats `EATEN` images/s computes."""
    waited = 0.0
    with closing(prefetched(make(), 2)) as batches:
        next(batches)  # a round's first is waited for, whatever the loader
        began = time.perf_counter()
        while True:
            time.sleep(BATCH / EATEN)
            before = time.perf_counter()
            if next(batches, None) is None:
                break
            waited += time.perf_counter() - before
    return waited / (time.perf_counter() - began)


def _eaten(blocks: list[Block]) -> Iterator[tuple[str, Callable[[], Iterator[object]]]]:
    share = Share(blocks, seed=0, number=0)
    mean = np.random.default_rng(1).uniform(0, 255, (SIDE, SIDE, 3)).astype(np.float32)
    convert = ToTensor(mean, 1, "cpu", kept=3)
    draw = partial(share.minibatches, 0, TAU, batch=BATCH, augmentation=Augmentation(crop=CROP, mirror=True), kept=3)
    yield "uint8", draw
    yield "float32 less mean, NCHW", lambda: map(convert, draw())


def _in_turns(ways: list[Way], turns: int, seconds: float) -> dict[str, list[float]]:
    for way in ways:  # once through all images, which are checked at that
        _rate(way.take, seconds)
    rates: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(turns):
        for way in ways:
            rates[way.name].append(_rate(way.take, seconds) / way.cores)
    return rates


def _rate(take: Callable[[], object], seconds: float) -> float:
    taken, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or not taken:
        take()
        taken += BATCH
    return taken / elapsed


def _limits(blocks: list[Block]) -> list[Way]:
    images = [block.images().transpose(0, 3, 1, 2) for block in blocks]
    rng = np.random.default_rng(0)
    pixels = np.empty((BATCH, 3, CROP, CROP), np.uint8)
    floats = np.empty((BATCH, 3, CROP, CROP), np.float32)

    def copy() -> None:
        chosen = rng.integers(0, [len(images), len(images[0]), SIDE - CROP + 1, SIDE - CROP + 1], (BATCH, 4)).tolist()
        for i, (block, row, top, left) in enumerate(chosen):
            pixels[i] = images[block][row, :, top : top + CROP, left : left + CROP]

    def fill() -> None:
        floats.fill(1)

    return [Way(COPY, COPY, copy), Way(FILL, FILL, fill)]


def _ours(blocks: list[Block]) -> Iterator[Way]:
    mean = np.random.default_rng(1).uniform(0, 255, (SIDE, SIDE, 3)).astype(np.float32)
    share = Share(blocks, seed=0, number=0)
    batches = share.minibatches(0, 2**31, batch=BATCH, augmentation=Augmentation(crop=CROP, mirror=True))
    yield Way("SparkNet: crop, mirror, uint8", COPY, lambda: next(batches))
    for channels_last in (False, True):
        convert = ToTensor(mean, 1, "cpu", channels_last)
        name = f"SparkNet: crop, mirror, float32 less mean, {'channels last' if channels_last else 'NCHW'}"
        yield Way(name, FILL, partial(next, map(convert, batches)))


class _Crops(Dataset[tuple[torch.Tensor, int]]):
    """What one writes for torch's DataLoader: an image at a time, from the memory map."""

    def __init__(self, blocks: list[Block]) -> None:
        self._images = [block.images().transpose(0, 3, 1, 2) for block in blocks]

    def __len__(self) -> int:
        return sum(map(len, self._images))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._images[index // _BLOCK][index % _BLOCK]
        top, left, mirror = torch.randint(0, SIDE - CROP + 1, (3,)).tolist()
        taken = torch.from_numpy(image[:, top : top + CROP, left : left + CROP].copy())
        return taken.flip(2) if mirror % 2 else taken, index


@contextmanager
def _dataloader(blocks: list[Block], _: Path) -> Iterator[Way]:
    loader = DataLoader(
        _Crops(blocks), BATCH, shuffle=True, num_workers=_DATALOADER_WORKERS, drop_last=True, persistent_workers=True
    )
    batches = _endless(loader)
    name = f"torch DataLoader, {_DATALOADER_WORKERS} workers: crop, mirror, uint8"
    yield Way(name, COPY, lambda: next(batches), cores=_DATALOADER_WORKERS)


@contextmanager
def _petastorm(blocks: list[Block], folder: Path) -> Iterator[Way]:
    install()
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader
    from petastorm.transform import TransformSpec

    for block in blocks:
        columns = {"label": block.labels, "image": [image.tobytes() for image in block.images().transpose(0, 3, 1, 2)]}
        pq.write_table(pa.table(columns), folder / f"{block.name}.parquet", row_group_size=BATCH, compression="none")
    shaped = TransformSpec(_shaped, edit_fields=[("image", np.uint8, (3, SIDE, SIDE), False)])
    reader = make_batch_reader(
        [f"file://{folder}/{block.name}.parquet" for block in blocks],
        transform_spec=shaped,
        reader_pool_type="thread",
        workers_count=1,
        num_epochs=None,
        results_queue_size=4,
    )
    with warnings.catch_warnings(), BatchedDataLoader(reader, batch_size=BATCH) as loader:
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        batches = iter(loader)
        yield Way("petastorm BatchedDataLoader: whole images, uint8", COPY, lambda: next(batches))


def _shaped(rows: pd.DataFrame) -> pd.DataFrame:
    images = [np.frombuffer(data, np.uint8).reshape(3, SIDE, SIDE) for data in rows["image"]]
    return rows.assign(image=pd.Series(images, rows.index, object))


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _noise_block(folder: Path, start: int, stop: int) -> Block:
    images = np.random.default_rng(start).integers(0, 256, (stop - start, SIDE, SIDE, 3), np.uint8)
    return write_images(folder / f"{start}.rgb", images, np.arange(start, stop))
