import gzip
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from pyspark import SparkContext

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.blocks import cache
from sparknet.loaders.decode import decode
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.samples import read_samples
from tests.loaders.layouts.test_folder import read

N = 30
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 28, 28), np.uint8)
LABELS = np.arange(N, dtype=np.uint8) % 7


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4s{array.ndim}I", bytes([0, 0, 8, array.ndim]), *array.shape) + array.tobytes()


def write(folder: Path, images: str = "", labels: str = "", kind: str = "train") -> str:
    """Write a set; `images` and `labels` end their names. Gives the URL of the images."""
    for name, end, data in (
        (f"{kind}-images-idx3-ubyte", images, idx(PIXELS)),
        (f"{kind}-labels-idx1-ubyte", labels, idx(LABELS)),
    ):
        (folder / f"{name}{end}").write_bytes(gzip.compress(data) if end else data)
    return f"{folder}/{kind}-images-idx3-ubyte{images}"


@pytest.mark.parametrize("images", ["", ".gz"])
@pytest.mark.parametrize("labels", ["", ".gz"])
@pytest.mark.parametrize("whole", [True, False])
def test_the_images_of_a_set(tmp_path: Path, images: str, labels: str, whole: bool) -> None:
    url = write(tmp_path, images, labels)
    plan = plan_source(str(tmp_path) if whole else url)
    assert (plan.layout, plan.class_names) == ("mnist", tuple("0123456"))
    samples = read(plan)
    assert [(sample.key, sample.label, sample.url) for sample in samples] == [
        (f"{i:05d}", i % 7, url) for i in range(N)
    ]
    assert np.array_equal([decode(sample.data) for sample in samples], np.repeat(PIXELS[..., None], 3, axis=3))


@pytest.mark.parametrize("end", ["", ".gz"])
def test_images_are_read_again_by_their_numbers(tmp_path: Path, end: str) -> None:
    plan = plan_source(write(tmp_path, end))
    samples = [read(plan)[i] for i in (0, 3, 4, N - 1)]
    found = plan.again(samples[0].url, [(sample.offset, len(sample.data)) for sample in samples])
    assert [*found] == [sample.data for sample in samples]


def test_a_cached_block_is_made_again_from_the_gzipped_file(sc: SparkContext, tmp_path: Path) -> None:
    blocks = cache(read_samples(sc, write(tmp_path, ".gz")).shuffled(seed=1, partitions=3), 28)
    assert sorted(int(label) for block in blocks.handles for label in block.labels) == sorted(LABELS.tolist())
    before = blocks.rdd.map(lambda block: block.images().copy()).collect()
    for block in blocks.handles:
        Path(block.path).unlink()
    after = blocks.rdd.map(lambda block: block.images().copy()).collect()
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    blocks.close()


def test_a_folder_of_two_sets(tmp_path: Path) -> None:
    urls = sorted([write(tmp_path, ".gz"), write(tmp_path, kind="t10k")])
    message = re.escape(f"{tmp_path}: holds 2 sets; name one: {' or '.join(urls)}")
    with pytest.raises(SourceError, match=f"^{message}$"):
        plan_source(str(tmp_path))


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("harm", ["cut", "head", "longer", "no labels", "other labels", "text"])
def test_damage_is_named(tmp_path: Path, harm: str, end: str) -> None:
    url = write(tmp_path, end, end)
    path, labels = Path(url), Path(url.replace("images-idx3", "labels-idx1"))
    whole = idx(PIXELS)
    pack = gzip.compress if end else bytes
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-9])
        message = f"{url}: (cut off|damaged or cut off)"
    elif harm == "head":
        path.write_bytes(pack(b"\0\0\x08\x01" + whole[4:]))
        message = f"{url}: not an idx file of images"
    elif harm == "longer":
        path.write_bytes(pack(whole + b"x"))
        message = f"{url}: goes on after its {N} images"
    elif harm == "no labels":
        labels.unlink()
        message = f"{labels}: no such file or folder; the labels of the images must lie beside them"
    elif harm == "other labels":
        labels.write_bytes(pack(idx(LABELS[:-1])))
        message = f"{url}: .* images, but {N - 1} labels"
    else:
        path.write_bytes(b"404: Not Found, and so on: a page of text")
        message = f"{url}: (not an idx file|damaged or cut off)"
    with pytest.raises(SourceError, match=f"^{message}"):
        read(plan_source(url))


def test_a_label_of_no_number_of_images(tmp_path: Path) -> None:
    url = write(tmp_path)
    labels = Path(url.replace("images-idx3", "labels-idx1"))
    labels.write_bytes(idx(LABELS)[:-1])
    with pytest.raises(ShardError, match=f"^{labels}: cut off: 29 bytes came of the 30 that are next"):
        plan_source(url)
