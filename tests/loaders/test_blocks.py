import re
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from rich.filesize import decimal

from sparknet import scratch
from sparknet.errors import ConfigError, SampleError, ShardError, SourceError
from sparknet.loaders import block as block_module
from sparknet.loaders import cached as cached_module
from sparknet.loaders import stored as stored_module
from sparknet.loaders.block import Block, Form, write_block
from sparknet.loaders.blocks import Blocks, cache
from sparknet.loaders.decode import decode
from sparknet.loaders.labels import Labels
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.layouts.plan import Sample
from sparknet.loaders.preprocess import resize
from sparknet.loaders.samples import BadLimit, BadSample, Image, Ledger, Samples, decode_samples, read_samples
from sparknet.loaders.stored import forget_removed, open_stored
from sparknet.scratch import Room, local_path
from tests.sets import SYNSETS, TinySet, encode, jpeg, tar_bytes

SIDE = 24


def build(index: int, samples: Iterable[Sample], set_id: str) -> Iterator[Block]:
    limit = BadLimit(source="set", share=1, most=1000)
    return write_block(index, samples, form=Form(SIDE), set_id=set_id, limit=limit, room=Room())


@pytest.fixture(scope="module")
def samples(sc: SparkContext, tiny: TinySet) -> Samples:
    return read_samples(sc, str(tiny.train)).shuffled(seed=1, partitions=5)


@pytest.fixture(scope="module")
def blocks(samples: Samples) -> Iterator[Blocks]:
    found = cache(samples, SIDE)
    yield found
    found.close()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this process takes for the executor's own."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/local")
    return local_path("any").parent


def write_tar(folder: Path, members: dict[str, bytes]) -> str:
    path = folder / "images.tar"
    path.write_bytes(tar_bytes(members))
    return str(path)


def labels_of(members: dict[str, bytes]) -> Labels:
    return Labels(url="labels.txt", by_key={key: i % 3 for i, key in enumerate(members)}, classes=3)


def images_by_place(blocks: Blocks) -> dict[tuple[str, int], tuple[np.ndarray, int]]:
    """(url, offset) -> (image, label), over all blocks."""
    return {
        (block.urls[url], int(offset)): (image, int(label))
        for block in blocks.handles
        for url, offset, image, label in zip(block.url_of, block.offsets, block.images(), block.labels, strict=True)
    }


def test_cached_images_are_the_decoded_and_resized_ones(samples: Samples, blocks: Blocks) -> None:
    expected = samples.rdd.collect()
    found = images_by_place(blocks)
    assert len(found) == len(expected) == 63
    for sample in expected:
        image, label = found[sample.url, sample.offset]
        assert label == sample.label
        assert np.array_equal(image, resize(decode(sample.data), SIDE))


def test_a_block_is_a_partition_in_its_order(samples: Samples, blocks: Blocks) -> None:
    parts = samples.rdd.glom().collect()
    handles = blocks.handles
    assert blocks.counts == tuple(len(part) for part in parts)
    for part, block in zip(parts, handles, strict=True):
        assert len(block) == len(part)
        assert block.labels.tolist() == [sample.label for sample in part]
        assert [(block.urls[i], int(at)) for i, at in zip(block.url_of, block.offsets, strict=True)] == [
            (sample.url, sample.offset) for sample in part
        ]
        assert block.sizes.tolist() == [len(sample.data) for sample in part]
        assert block.host == socket.gethostname()
        assert [str(array.dtype) for array in (block.labels, block.url_of, block.offsets)] == [
            "int64",
            "int32",
            "int64",
        ]
        images = block.images()
        assert images.dtype == np.uint8
        assert images.shape == (len(part), SIDE, SIDE, 3)
        assert images.transpose(0, 3, 1, 2).flags.c_contiguous
        assert not images.flags.writeable


def test_what_the_set_says(tiny: TinySet, blocks: Blocks) -> None:
    assert blocks.ledger == Ledger(63, 63)
    assert blocks.class_names == SYNSETS
    assert blocks.side == SIDE
    assert blocks.source == str(tiny.train)


def test_the_handles_are_cached_not_made_again(blocks: Blocks) -> None:
    once, again = blocks.handles, blocks.rdd.collect()
    assert [block.path for block in once] == [block.path for block in again]
    inodes = [Path(block.path).stat().st_ino for block in once]
    blocks.mean_image()
    assert [Path(block.path).stat().st_ino for block in once] == inodes


def test_the_mean_image_is_exact(samples: Samples, blocks: Blocks) -> None:
    images = np.stack([resize(decode(sample.data), SIDE) for sample in samples.rdd.collect()])
    mean = blocks.mean_image()
    assert mean.dtype == np.float32
    assert np.array_equal(mean, images.mean(axis=0, dtype=np.float64).astype(np.float32))


def test_the_colour_components_are_those_of_all_pixels(samples: Samples, blocks: Blocks) -> None:
    images = np.stack([resize(decode(sample.data), SIDE) for sample in samples.rdd.collect()])
    covariance = np.cov(images.reshape(-1, 3).T / 255, bias=True)
    found = blocks.colour_components()
    assert found.shape == (3, 3)
    assert found.dtype == np.float32
    values = np.linalg.eigvalsh(covariance)
    for value, column in zip(values, found.T / 255, strict=True):
        assert np.linalg.norm(column) == pytest.approx(value, rel=1e-4)
        assert np.allclose(covariance @ column, value * column, rtol=1e-3, atol=1e-7)
    assert (found.sum(axis=0) > 0).all()


def test_jpegs_take_less_room_and_are_made_again_to_the_bit(sc: SparkContext, tmp_path: Path, elsewhere: Path) -> None:
    gradient = np.linspace(0, 250, 64 * 64 * 3).astype(np.uint8).reshape(64, 64, 3)
    members = {f"{i}.JPEG": encode(gradient + i, "JPEG") for i in range(5)}
    url = write_tar(tmp_path, members)
    blocks = cache(read_samples(sc, url, labels=labels_of(members)).shuffled(1, 2), 64, quality=90)
    raw = cache(read_samples(sc, url, labels=labels_of(members)).shuffled(1, 2), 64)
    for block, whole in zip(blocks.handles, raw.handles, strict=True):
        assert block.labels.tolist() == whole.labels.tolist()
        size = Path(block.path).stat().st_size
        assert size == block.length
        images = block.images().copy()
        assert np.abs(images.astype(int) - whole.images()).mean() < 3
        assert (images != whole.images()).any()
        sums = 64 * 64 * 3 * 4
        assert size - sums < (whole.length - sums) / 5
        delete(block)
        assert np.array_equal(block.images(), images)
        assert [path.stat().st_size for path in elsewhere.glob(block.name)] == [size]
    every = np.concatenate([block.images() for block in blocks.handles])
    assert np.array_equal(blocks.mean_image(), every.mean(axis=0, dtype=np.float64).astype(np.float32))


@pytest.mark.parametrize("quality", [0, 101, -5])
def test_a_quality_that_is_none(samples: Samples, quality: int) -> None:
    with pytest.raises(ConfigError, match=rf"^the quality of cached JPEGs is from 1 to 100, got {quality}$"):
        cache(samples, SIDE, quality=quality)


def test_bad_samples_are_named_and_the_good_ones_stay(sc: SparkContext, tmp_path: Path) -> None:
    members = {f"{i}.JPEG": jpeg(i, i % 3) for i in range(8)}
    members |= {"1.JPEG": b"no image", "4.JPEG": b"", "6.JPEG": jpeg(6, 0)[:-200]}
    url = write_tar(tmp_path, members)
    labels = labels_of(members)
    del labels.by_key["7.JPEG"]  # type: ignore[attr-defined]
    samples = read_samples(sc, url, labels=labels)
    offsets = {sample.key: sample.offset for sample in samples.rdd.collect()}
    blocks = cache(samples, SIDE, max_bad=0.5)
    bad = {sample.key: sample for sample in blocks.ledger.bad}
    assert (blocks.ledger.seen, blocks.ledger.good, len(blocks.ledger.bad)) == (8, 4, 4)
    assert bad["1.JPEG"] == BadSample("1.JPEG", url, offsets["1.JPEG"], "not an image in any format that Pillow knows")
    assert bad["4.JPEG"] == BadSample("4.JPEG", url, offsets["4.JPEG"], "no bytes (an empty file, or a link)")
    assert bad["6.JPEG"].reason == "damaged JPEG: Premature end of JPEG file"
    assert bad["7.JPEG"].reason == "no label is given for its name"
    found = images_by_place(blocks)
    assert set(found) == {(url, offsets[f"{i}.JPEG"]) for i in (0, 2, 3, 5)}
    for i in (0, 2, 3, 5):
        image, label = found[url, offsets[f"{i}.JPEG"]]
        assert label == i % 3
        assert np.array_equal(image, resize(decode(members[f"{i}.JPEG"]), SIDE))
    good = np.stack([image for image, _ in found.values()])
    assert np.array_equal(blocks.mean_image(), good.mean(axis=0, dtype=np.float64).astype(np.float32))


def set_with_bad(sc: SparkContext, folder: Path, good: int, bad: int) -> Samples:
    members = {f"{i}.JPEG": jpeg(i, i % 3) if i >= bad else b"no image" for i in range(good + bad)}
    return read_samples(sc, write_tar(folder, members), labels=labels_of(members))


def test_as_many_bad_samples_as_are_allowed(sc: SparkContext, tmp_path: Path) -> None:
    blocks = cache(set_with_bad(sc, tmp_path, good=18, bad=2), SIDE, max_bad=0.1)
    assert (blocks.ledger.seen, blocks.ledger.good) == (20, 18)


@pytest.mark.parametrize(
    ("max_bad", "message"),
    [
        # Where there could be 83 samples, 2 are too many at the end only, when there were 20.
        (0.09, r"2 of 20 samples are bad, more than 9\.00%; the first, 0\.JPEG \(.*, offset 512\): not an image"),
        (0.01, r"1 of at most 83 samples are bad, more than 1\.00%; the first, 0\.JPEG"),
        (0, r"1 of at most 83 samples are bad, more than 0\.00%"),
    ],
)
def test_too_many_bad_samples(sc: SparkContext, tmp_path: Path, max_bad: float, message: str) -> None:
    samples = set_with_bad(sc, tmp_path, good=18, bad=2)
    assert samples.most == 20
    samples = replace(samples, most=83)
    persistent = sc._jsc.getPersistentRDDs().size()
    with pytest.raises(SampleError, match=message) as raised:
        cache(samples, SIDE, max_bad)
    assert str(raised.value).startswith(f"{samples.source}: ")
    assert str(raised.value).endswith("mend them, or raise --max-bad")
    assert sc._jsc.getPersistentRDDs().size() <= persistent  # Spark may have found others unreachable meanwhile


@pytest.mark.parametrize("max_bad", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none(samples: Samples, max_bad: float) -> None:
    with pytest.raises(ConfigError, match="max-bad is a share of the set, from 0 to 1, got"):
        cache(samples, SIDE, max_bad)


def test_a_pass_that_loses_a_sample_is_an_error(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good and bad are counted apart from what went in: a decoder that passes one over shows."""

    def careless(records: Iterator[Sample]) -> Iterator[Image | BadSample]:
        yield from (outcome for i, outcome in enumerate(decode_samples(records)) if i != 5)

    records = samples.rdd.collect()
    monkeypatch.setattr(block_module, "decode_samples", careless)
    [block] = build(0, records, "careless")
    with pytest.raises(SampleError, match=rf"^set: {len(records)} samples went in, {len(records) - 1} good and 0 bad"):
        block.ledger.check("set")


def test_a_set_without_a_good_image_is_an_error(sc: SparkContext, tiny: TinySet, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=rf"^{tiny.val}: all 31 samples are bad; the first, .*: no label is given"):
        cache(read_samples(sc, str(tiny.val)), SIDE, max_bad=1)
    with pytest.raises(SampleError, match=rf"^{tmp_path}/images.tar: holds no sample$"):
        cache(read_samples(sc, write_tar(tmp_path, {})), SIDE)


def test_a_damaged_source_is_our_error(sc: SparkContext, tiny: TinySet, tmp_path: Path) -> None:
    content = bytearray(tiny.train.read_bytes())
    content[plan_source(str(tiny.train)).parts[2].start] ^= 0xFF
    path = tmp_path / "train.tar"
    path.write_bytes(content)
    with pytest.raises(ShardError, match=f"^{path}: not a tar at offset "):
        cache(read_samples(sc, str(path)), SIDE)


def test_a_side_below_one_is_refused(samples: Samples) -> None:
    with pytest.raises(ConfigError, match=r"^side must be at least 1 pixel, got 0$"):
        cache(samples, 0)


def delete(block: Block) -> Block:
    Path(block.path).unlink()
    return block


def truncate(block: Block) -> Block:
    with Path(block.path).open("r+b") as file:
        file.truncate(1000)
    return block


def empty(block: Block) -> Block:
    Path(block.path).write_bytes(b"")
    return block


def lengthen(block: Block) -> Block:
    with Path(block.path).open("ab") as file:
        file.write(b"x")
    return block


def flip_a_bit(block: Block) -> Block:
    with Path(block.path).open("r+b") as file:
        file.seek(5 * SIDE * SIDE * 3 + 100)
        [byte] = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    return block


def on_another_host(block: Block) -> Block:
    return replace(block, host="another.host")


@pytest.mark.parametrize("damage", [delete, truncate, empty, lengthen, flip_a_bit, on_another_host])
def test_a_file_that_is_missing_or_not_whole_is_made_again_to_the_bit(
    samples: Samples, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Block], Block]
) -> None:
    with monkeypatch.context() as builder:
        builder.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/builder")
        [block] = build(0, samples.rdd.collect(), "set")
    before = block.images().copy()
    damaged = damage(block)
    forget_all()  # as another process
    images = damaged.images()
    assert np.array_equal(images, before)
    assert not images.flags.writeable
    assert [path.name for path in elsewhere.iterdir()] == [block.name]  # and nothing half-written
    inode = (elsewhere / block.name).stat().st_ino
    assert np.array_equal(damaged.images(), before)
    assert (elsewhere / block.name).stat().st_ino == inode


def forget_all() -> None:
    """What this process has mapped and checked; the next look is as another's."""
    stored_module._mapped.clear()


def test_an_image_is_checked_when_it_is_asked_for(samples: Samples, elsewhere: Path) -> None:
    """Not before: a share's first minibatch does not wait for all of it to be read. And not twice."""
    [block] = build(0, samples.rdd.collect(), "set")
    whole = block.images().copy()
    flip_a_bit(block)
    forget_all()
    stored = open_stored(block)
    assert np.array_equal(stored.row(4), whole[4].transpose(2, 0, 1))
    assert stored.path == Path(block.path)
    inode = stored.path.stat().st_ino
    assert np.array_equal(stored.row(5), whole[5].transpose(2, 0, 1))
    assert stored.path == elsewhere / block.name
    assert stored.path.stat().st_ino != inode
    assert open_stored(block) is stored
    assert np.array_equal(stored.rows(np.arange(len(block)))[:], whole.transpose(0, 3, 1, 2))


def test_a_source_that_has_changed_is_an_error(sc: SparkContext, tmp_path: Path, elsewhere: Path) -> None:
    """Not other images under the same handle."""
    members = {f"{i}.JPEG": jpeg(i, i) for i in range(3)}
    url = write_tar(tmp_path, members)
    [block] = build(0, read_samples(sc, url, labels=labels_of(members)).rdd.collect(), "set")
    delete(block)
    content = bytearray(Path(url).read_bytes())
    other = jpeg(9, 1)
    content[int(block.offsets[1]) : int(block.offsets[1]) + len(other)] = other
    Path(url).write_bytes(content)
    block.sizes[1] = len(other)
    with pytest.raises(ShardError, match=rf"^{url}: the image at offset {block.offsets[1]} is not what it was when it"):
        block.images()
    assert [*elsewhere.glob("*")] == []


def test_files_that_are_removed_are_let_go_of(samples: Samples, elsewhere: Path) -> None:
    [block] = build(0, samples.rdd.collect(), "set")
    block.images()
    (elsewhere / block.name).unlink()
    forget_removed()
    assert block.name not in stored_module._mapped
    assert str(elsewhere / block.name) not in Path("/proc/self/maps").read_text()


def files_of(sc: SparkContext, set_id: str) -> list[str]:
    return sc.parallelize([0], 1).flatMap(lambda _: _names(set_id)).collect()


def _names(set_id: str) -> list[str]:
    return [path.name for path in local_path("any").parent.glob(f"{set_id}*")]


def test_a_set_that_is_closed_takes_its_files_along(sc: SparkContext, samples: Samples, blocks: Blocks) -> None:
    other = cache(samples, 8)
    assert len(files_of(sc, other.set_id)) == 5
    other.close()
    assert files_of(sc, other.set_id) == []
    assert len(files_of(sc, blocks.set_id)) == 5


def test_a_pass_that_fails_leaves_no_file(sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = uuid4()
    monkeypatch.setattr(uuid, "uuid4", lambda: name)
    samples = set_with_bad(sc, tmp_path, good=18, bad=2)
    with pytest.raises(SampleError):
        cache(samples, SIDE, max_bad=0.09)
    assert files_of(sc, name.hex[:12]) == []


def test_a_pass_that_is_interrupted_waits_for_nothing(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where py4j, at handling Ctrl-C, fails, and says that instead."""

    def interrupted(_: RDD[Block]) -> list[Block]:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise Py4JError("the connection is gone")  # noqa: B904

    def too_late(*_: object) -> None:
        pytest.fail("the tasks still run")

    monkeypatch.setattr(RDD, "collect", interrupted)
    monkeypatch.setattr(RDD, "unpersist", too_late)
    monkeypatch.setattr(cached_module, "remove_everywhere", too_late)
    with pytest.raises(Py4JError):
        cache(samples, SIDE)


def test_a_limit_in_bytes(sc: SparkContext, samples: Samples) -> None:
    """Said before much is written: the samples are counted by then."""
    used = sum(sc.parallelize([0], 1).flatMap(lambda _: [*scratch._sizes("*")]).collect())
    need = 63 * 100 * 100 * 3
    with pytest.raises(ConfigError) as raised:
        cache(samples, 100, limit_bytes=used + need // 2)
    said = re.fullmatch(
        r"the cache may take (.*) on a host and has .*, but the images need about (.*); raise --cache-limit-gb, or use "
        "--cache jpeg or a smaller --side",
        str(raised.value),
    )
    assert said is not None
    assert said[1] == decimal(used + need // 2)
    assert float(said[2].split()[0]) == pytest.approx(need / 1e6, rel=0.1)
    assert sum(sc.parallelize([0], 1).flatMap(lambda _: [*scratch._sizes("*")]).collect()) == used
    cache(samples, 100, limit_bytes=used + 2 * need).close()


def test_a_limit_where_the_samples_cannot_be_counted_before(sc: SparkContext, tiny: TinySet) -> None:
    used = sum(sc.parallelize([0], 1).flatMap(lambda _: [*scratch._sizes("*")]).collect())
    with pytest.raises(ConfigError, match=r"but this partition's images need another .* at least; raise --cache-limit"):
        cache(read_samples(sc, str(tiny.train)), 1500, limit_bytes=used + (20 << 20))
    assert sum(sc.parallelize([0], 1).flatMap(lambda _: [*scratch._sizes("*")]).collect()) == used


def test_a_limit_below_one(samples: Samples) -> None:
    with pytest.raises(ConfigError, match=r"^the cache limit must be above 0 bytes, got 0$"):
        cache(samples, 8, limit_bytes=0)


@pytest.mark.usefixtures("elsewhere")
def test_images_of_several_files_are_made_again_from_their_own(sc: SparkContext, tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.tar").write_bytes(tar_bytes({f"{i}_{j}.JPEG": jpeg(10 * i + j, i) for j in range(4)}))
    labels = Labels(url="l", by_key={f"{i}_{j}.JPEG": i for i in range(3) for j in range(4)}, classes=3)
    [block] = cache(read_samples(sc, str(tmp_path), labels=labels).shuffled(seed=2, partitions=1), SIDE).handles
    assert len(block.urls) == 3
    before = block.images().copy()
    delete(block)
    assert np.array_equal(block.images(), before)


def test_a_task_makes_a_lost_file_again(samples: Samples) -> None:
    blocks = cache(samples, SIDE)
    mean = blocks.mean_image()
    for block in blocks.handles:
        delete(block)
    assert np.array_equal(blocks.mean_image(), mean)
    assert all(Path(block.path).stat().st_size == block.length for block in blocks.handles)


def test_a_source_that_is_gone_is_named_where_the_file_is_made_again(
    sc: SparkContext, tmp_path: Path, elsewhere: Path
) -> None:
    members = {f"{i}.JPEG": jpeg(i, i) for i in range(3)}
    url = write_tar(tmp_path, members)
    blocks = cache(read_samples(sc, url, labels=labels_of(members)), SIDE)
    [block] = map(delete, blocks.handles)
    Path(url).unlink()
    with pytest.raises(SourceError, match=f"^{url}: no such file or folder$"):
        block.images()
    assert [*elsewhere.glob("*")] == []
    with pytest.raises(SourceError, match=f"^{url}: no such file or folder$"):
        blocks.mean_image()


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_block_i_is_worker_i_modulo_k_s(
    blocks: Blocks, workers: int, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_module, "executor_hosts", lambda _: set(range(hosts)))
    shares = blocks.shares(workers)
    assert shares.getNumPartitions() == workers
    parts = shares.glom().collect()
    names = [block.name for block in blocks.handles]
    assert [[[block.name for block in share] for share in part] for part in parts] == [
        [names[worker::workers]] for worker in range(workers)
    ]


@pytest.mark.parametrize(
    ("workers", "message"), [(0, "workers must be at least 1, got 0"), (6, "6 workers, but only 5")]
)
def test_workers_without_images_are_refused(blocks: Blocks, tiny: TinySet, workers: int, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        blocks.shares(workers)
    expected = f"{tiny.train}: {message} would get any of the 63 samples; use fewer workers" if workers else message
    assert str(raised.value) == expected


def test_more_partitions_than_images(sc: SparkContext, tmp_path: Path) -> None:
    members = {f"{i}.JPEG": jpeg(i, i) for i in range(5)}
    url = write_tar(tmp_path, members)
    blocks = cache(read_samples(sc, url, labels=labels_of(members)).shuffled(seed=1, partitions=8), SIDE)
    assert sorted(blocks.counts) == [0] * 3 + [1] * 5
    images = np.stack([resize(decode(data), SIDE) for data in members.values()])
    assert np.array_equal(blocks.mean_image(), images.mean(axis=0, dtype=np.float64).astype(np.float32))
    none = next(block for block in blocks.handles if not len(block))
    assert none.images().shape == (0, SIDE, SIDE, 3)
    assert none.urls == ()
    assert none.ledger == Ledger()
    [[share]] = blocks.shares(1).glom().collect()
    assert [len(block) for block in share] == [*blocks.counts]
    with pytest.raises(ConfigError, match=r"8 workers, but only 5 would get any of the 5 samples"):
        blocks.shares(8)


def test_one_image(sc: SparkContext, tmp_path: Path) -> None:
    url = write_tar(tmp_path, {"a.JPEG": jpeg(1, 0)})
    blocks = cache(read_samples(sc, url, labels=labels_of({"a.JPEG": b""})), SIDE)
    assert blocks.counts == (1,)
    assert np.array_equal(blocks.mean_image(), resize(decode(jpeg(1, 0)), SIDE).astype(np.float32))
    assert [len(share) for share in blocks.shares(1).collect()] == [1]


def test_two_sets_keep_apart(samples: Samples, blocks: Blocks) -> None:
    other = cache(samples, 8)
    names = {block.name for block in blocks.handles}
    assert names.isdisjoint(block.name for block in other.handles)
    assert images_by_place(blocks).keys() == images_by_place(other).keys()


def test_attempts_at_the_same_block_do_not_disturb_each_other(samples: Samples, elsewhere: Path) -> None:
    records = samples.rdd.collect()

    def interrupted() -> Iterator[object]:
        yield from records[:10]
        [block] = build(3, records, "set")  # the other attempt, from start to end, meanwhile
        whole.append(block.images().copy())
        raise KeyError("killed")

    whole: list[np.ndarray] = []
    with pytest.raises(KeyError):
        list(build(3, interrupted(), "set"))  # type: ignore[arg-type]
    [path] = elsewhere.iterdir()
    assert path.name == "set-00003.rgb"
    images = np.fromfile(path, np.uint8)[: whole[0].size].reshape(-1, 3, SIDE, SIDE)
    assert np.array_equal(images, whole[0].transpose(0, 3, 1, 2))
    [again] = build(3, records, "set")
    assert np.array_equal(again.images(), whole[0])
