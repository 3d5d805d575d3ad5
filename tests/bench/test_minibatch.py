"""The benchmark measures what it says, of all ways; how fast they are is not a test's business."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from sparknet import cli
from sparknet.bench import memory, minibatch
from sparknet.errors import ConfigError
from sparknet.loaders.block import write_images


@pytest.fixture(autouse=True)
def a_brief_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minibatch, "TAU", 4)


def test_every_way_is_measured_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = torch.get_num_threads()
    rates, waits, measured = minibatch.measure(images=512, turns=1, seconds=0.01, others=False)
    assert [wait.name for wait in waits] == ["uint8", "float32 less mean, NCHW"]
    assert [share.images for share in measured] == ([512, 16 * 512] if memory.SMAPS.exists() else [])
    assert all(0 <= wait.share <= 1 for wait in waits)
    assert [rate.limit for rate in rates] == [
        minibatch.COPY,
        minibatch.FILL,
        minibatch.COPY,
        minibatch.FILL,
        minibatch.FILL,
    ]
    by_name = {rate.name: rate for rate in rates}
    for rate in rates:
        assert rate.images_per_s > 0
        assert rate.ratio == pytest.approx(rate.images_per_s / by_name[rate.limit].images_per_s)
    assert torch.get_num_threads() == threads
    assert [*tmp_path.iterdir()] == []


@pytest.mark.heavy
def test_other_loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ["--images", "512", "--turns", "1", "--seconds", "0.01", "--json"]
    monkeypatch.setattr("sys.argv", ["sparknet", "bench", "minibatch", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    rates = json.loads(capsys.readouterr().out)["rates"]
    assert [rate["name"].split(":")[0] for rate in rates[5:]] == [
        "torch DataLoader, 2 workers",
        "petastorm BatchedDataLoader",
    ]
    assert all(rate["images_per_s"] > 0 for rate in rates)
    assert [*tmp_path.iterdir()] == []


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [minibatch.Rate("a copy", 12345.6, "a copy", 1.0), minibatch.Rate("ours", 10000.0, "a copy", 0.81)]
    waits = [minibatch.Wait("uint8", 0.0123)]
    shares = [memory.Memory(2048, 213_000_000, 198_000_000, 402_000_000)]
    monkeypatch.setattr(minibatch, "measure", lambda *_: minibatch.Measured(rates, waits, shares))
    cli.bench_minibatch()
    assert capsys.readouterr().out.splitlines() == [
        "crops of 227 x 227, minibatches of 256  images/s a core  of the limit",
        "a copy                                           12,346",
        "ours                                             10,000           81%",
        "a stub that eats 5,000 images/s, uint8: waits 1.2% of the time, 2 prefetched",
        "memory of a worker's own, 2,048 images in its share: 213.0 MB, of which 198.0 MB are a minibatch's; 402.0 MB "
        "of files mapped",
    ]


@pytest.mark.parametrize("images", [0, 100, 300])
def test_a_number_of_images_that_is_no_multiple(images: int) -> None:
    with pytest.raises(ConfigError, match=rf"^images must be a multiple of the minibatch, 256, got {images}$"):
        minibatch.measure(images)


@pytest.mark.skipif(not memory.SMAPS.exists(), reason="only Linux tells how much memory is a process's own")
def test_memory_does_not_grow_with_the_share(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blocks = [
        write_images(tmp_path / f"{i}.rgb", rng.integers(0, 256, (500, 64, 64, 3), np.uint8), np.zeros(500, np.int64))
        for i in range(2)
    ]
    small, large = memory.measure(blocks, batch=100, crop=48, times=16)
    assert (small.images, large.images) == (1000, 16000)
    assert small.buffers_bytes == 100 * 3 * 48 * 48 * 5
    # Bytes of the files as a whole were read, and mapped.
    assert small.mapped_bytes > 12e6
    assert large.mapped_bytes > 16 * 12e6
    # Beside the buffers: torch's own first allocations; and labels, checksums, an order: some 30 bytes an image.
    assert small.own_bytes < small.buffers_bytes + 20e6
    assert large.own_bytes - small.own_bytes < 15000 * 100
