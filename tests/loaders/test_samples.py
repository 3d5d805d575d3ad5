import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext

from sparknet.errors import ConfigError, LabelError, SampleError, ShardError
from sparknet.loaders.labels import Labels, read_labels
from sparknet.loaders.layouts import LAYOUTS, plan_source, shards
from sparknet.loaders.layouts.plan import Part, Sample
from sparknet.loaders.layouts.tars import read_tar
from sparknet.loaders.samples import (
    BadSample,
    Image,
    Ledger,
    Samples,
    _in_drawn_order,
    _scatter,
    decode_samples,
    read_samples,
)
from sparknet.loaders.source import list_source
from sparknet.session import readable_errors
from tests.loaders.test_source import Server, server
from tests.sets import SYNSETS, TinySet, jpeg, tar_bytes

__all__ = ["server"]  # a fixture


def partitions_of(samples: Samples) -> list[list[Sample]]:
    parts: list[list[Sample]] = samples.rdd.glom().collect()
    return parts


def keys_of(samples: Samples) -> list[list[str]]:
    return [[sample.key for sample in part] for part in partitions_of(samples)]


def write_shards(folder: Path, number: int, each: int) -> str:
    """Flat shards of images that are no images: their key, and it again."""
    for i in range(number):
        members = {f"{i:02d}_{j}": f"{i:02d}_{j}".encode() for j in range(each)}
        (folder / f"{i:02d}.tar").write_bytes(tar_bytes(members))
    return str(folder)


def test_each_record_of_the_train_tar_once(sc: SparkContext, tiny: TinySet) -> None:
    samples = read_samples(sc, str(tiny.train))
    parts = partitions_of(samples)
    assert [len(part) for part in parts] == [20, 21, 22]  # as many partitions as parts
    found = [sample for part in parts for sample in part]
    assert [(sample.key, (sample.data, sample.label)) for sample in found] == [*tiny.train_images.items()]
    content = tiny.train.read_bytes()
    for sample in found:
        assert sample.url == str(tiny.train)
        assert content[sample.offset : sample.offset + len(sample.data)] == sample.data
    assert samples.layout == "ilsvrc"
    assert samples.class_names == SYNSETS
    assert samples.source == str(tiny.train)
    assert samples.size == sum(part.length for part in plan_source(str(tiny.train)).parts)


@pytest.mark.parametrize("kind", ["val_txt", "devkit"])
def test_each_record_of_the_val_tar_once_with_its_label(sc: SparkContext, tiny: TinySet, kind: str) -> None:
    if kind == "val_txt":
        labels = read_labels(str(tiny.val_txt))
    else:
        labels = read_labels(str(tiny.ground_truth), str(tiny.devkit_ids), SYNSETS)
    samples = read_samples(sc, str(tiny.val), labels=labels, class_names=SYNSETS)
    assert {sample.key: (sample.data, sample.label) for sample in samples.rdd.collect()} == tiny.val_images
    assert samples.rdd.count() == 31
    assert samples.class_names == SYNSETS
    samples.close()


def test_by_http_too(sc: SparkContext, tiny: TinySet, server: Server) -> None:
    server.content = tiny.train.read_bytes()
    found = read_samples(sc, server.url).rdd.collect()
    assert {sample.key: (sample.data, sample.label) for sample in found} == tiny.train_images
    assert {sample.url for sample in found} == {server.url}


def test_classes_are_numbers_where_nothing_names_them(sc: SparkContext, tiny: TinySet) -> None:
    assert read_samples(sc, str(tiny.val)).class_names == ()
    assert read_samples(sc, str(tiny.val), labels=read_labels(str(tiny.val_txt))).class_names == ("0", "1", "2")


def labels_of(by_key: dict[str, int], classes: int | None = None) -> Labels:
    return Labels(url="val.txt", by_key=by_key, classes=classes or max(by_key.values()) + 1)


def test_labels_by_the_stored_name_or_by_its_last_component(sc: SparkContext, tmp_path: Path) -> None:
    members = {"val/n1/a.JPEG": b"a", "val/b.JPEG": b"b", "./c.JPEG": b"c", "d.JPEG": b"d"}
    (tmp_path / "x.tar").write_bytes(tar_bytes(members))
    labels = labels_of({"val/n1/a.JPEG": 0, "a.JPEG": 9, "b.JPEG": 1, "c.JPEG": 2, "n1/d.JPEG": 3})
    found = read_samples(sc, str(tmp_path), labels=labels).rdd.collect()
    assert [(sample.key, sample.label) for sample in found] == [
        ("val/n1/a.JPEG", 0), ("val/b.JPEG", 1), ("c.JPEG", 2), ("d.JPEG", None),
    ]  # fmt: skip


def test_a_label_file_and_a_layout_that_say_the_same(sc: SparkContext, tiny: TinySet) -> None:
    labels = labels_of({key: label for key, (_, label) in tiny.train_images.items()})
    found = read_samples(sc, str(tiny.train), labels=labels).rdd.collect()
    assert {sample.key: sample.label for sample in found} == labels.by_key


def test_a_label_file_that_contradicts_the_layout(sc: SparkContext, tiny: TinySet) -> None:
    """The first that contradicts is named: classes are read at the same time, so only one is wrong here."""
    labels = labels_of({key: label or 2 for key, (_, label) in tiny.train_images.items()})
    with pytest.raises(LabelError) as raised, readable_errors():
        read_samples(sc, str(tiny.train), labels=labels).rdd.count()
    key = f"{SYNSETS[0]}/{SYNSETS[0]}_0.JPEG"
    assert str(raised.value) == (
        f"{tiny.train}: {key} is of class 0, by sorted WordNet ID, but the label file says 2; leave the label file "
        "out, or mend it"
    )


def test_a_label_file_of_another_set_is_found_at_the_first_images(sc: SparkContext, tiny: TinySet) -> None:
    labels = labels_of({f"ILSVRC2012_test_{i:08d}.JPEG": 0 for i in range(40)})
    samples = read_samples(sc, str(tiny.val), labels=labels)
    with pytest.raises(LabelError) as raised:
        samples.check_labels()
    assert str(raised.value) == (
        f"val.txt: labels no image of {tiny.val}, whose first is ILSVRC2012_val_00000001.JPEG, but such as "
        "ILSVRC2012_test_00000000.JPEG; give the label file of that set"
    )
    some = labels_of({"ILSVRC2012_val_00000007.JPEG": 0})
    read_samples(sc, str(tiny.val), labels=some).check_labels()
    read_samples(sc, str(tiny.val)).check_labels()


def test_classes_that_do_not_fit_are_named(sc: SparkContext, tiny: TinySet) -> None:
    with pytest.raises(LabelError) as raised:
        read_samples(sc, str(tiny.train), class_names=(*SYNSETS[:2], "n09999999"))
    assert str(raised.value) == (
        f"{tiny.train}: its classes are not those of the train set: class 2 is {SYNSETS[2]} here, n09999999 there"
    )
    with pytest.raises(LabelError, match=r"class 3 is none here, n09999999 there$"):
        read_samples(sc, str(tiny.train), class_names=(*SYNSETS, "n09999999"))
    with pytest.raises(LabelError, match=f"class 0 is {SYNSETS[0]} here, {SYNSETS[2]} there$"):
        read_samples(sc, str(tiny.train), class_names=SYNSETS[::-1])
    with pytest.raises(LabelError, match=r"^val.txt: names class 4, but there are 3 classes$"):
        read_samples(sc, str(tiny.val), labels=labels_of({"a": 4}), class_names=SYNSETS)


@pytest.mark.parametrize("partitions", [1, 4, 17])
def test_shuffled_samples_are_the_same_ones_evenly_spread(sc: SparkContext, tiny: TinySet, partitions: int) -> None:
    samples = read_samples(sc, str(tiny.train))
    parts = partitions_of(samples.shuffled(seed=5, partitions=partitions))
    assert len(parts) == partitions
    assert Counter(sample for part in parts for sample in part) == Counter(samples.rdd.collect())
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 3  # one for each part of the source


def test_a_shuffle_mixes_the_classes_and_the_order(sc: SparkContext, tiny: TinySet) -> None:
    for part in partitions_of(read_samples(sc, str(tiny.train)).shuffled(seed=5, partitions=4)):
        assert min(Counter(sample.label for sample in part)[label] for label in range(3)) >= 4
        assert part != sorted(part, key=lambda sample: sample.key)
        labels = [sample.label for sample in part]
        assert labels != sorted(labels, key=lambda label: label or 0)


def test_a_shuffle_follows_from_its_seed(sc: SparkContext, tiny: TinySet) -> None:
    once = keys_of(read_samples(sc, str(tiny.train)).shuffled(seed=5, partitions=6))
    assert keys_of(read_samples(sc, str(tiny.train)).shuffled(seed=5, partitions=6)) == once
    other = keys_of(read_samples(sc, str(tiny.train)).shuffled(seed=6, partitions=6))
    assert other != once
    assert [set(part) for part in other] != [set(part) for part in once]


def test_a_shuffle_does_not_follow_from_which_task_ends_first(sc: SparkContext, tmp_path: Path) -> None:
    samples = read_samples(sc, write_shards(tmp_path, 4, 10))

    def late(index: int, records: Iterable[Sample], slow: set[int]) -> Iterable[Sample]:
        time.sleep(0.3 * (index in slow))
        return records

    orders = []
    for slow in (set[int](), {0, 1}, {2, 3}):
        delayed = replace(samples, rdd=samples.rdd.mapPartitionsWithIndex(partial(late, slow=slow)))
        orders.append(keys_of(delayed.shuffled(seed=1, partitions=3)))
    assert orders[0] == orders[1] == orders[2]


def test_a_shuffle_does_not_follow_from_spark(sc: SparkContext, tmp_path: Path) -> None:
    """The same dealt out in plain Python, whatever number of slots Spark has."""
    samples = read_samples(sc, write_shards(tmp_path, 5, 7))
    dealt: list[list[tuple[int, tuple[int, Sample | int]]]] = [[] for _ in range(4)]
    for index, part in enumerate(partitions_of(samples)):
        for target, record in _scatter(index, part, seed=9, partitions=4):
            dealt[target].append((target, record))
    for records in dealt:
        random.Random(0).shuffle(records)
    expected = [[sample.key for sample in _in_drawn_order(records)] for records in dealt]
    assert keys_of(samples.shuffled(seed=9, partitions=4)) == expected


def test_a_shuffle_that_loses_a_sample_is_an_error() -> None:
    samples = [Sample(str(i), b"", None, "", i) for i in range(7)]
    records = list(_scatter(0, samples, seed=1, partitions=1))
    assert len(list(_in_drawn_order(records))) == 7
    with pytest.raises(SampleError, match="the shuffle lost samples: 7 were sent to a partition, 6 arrived"):
        list(_in_drawn_order(records[1:]))


def lossy(part: Part) -> Iterator[Sample]:
    return itertools.islice(read_tar(part), 1, None)


def test_a_set_to_be_labelled_without_any_label_is_refused_before_it_is_read(sc: SparkContext, tiny: TinySet) -> None:
    message = rf"^{tiny.val}: nothing in it tells the class of an image; name its label file \(--labels; --val-labels "
    with pytest.raises(LabelError, match=message):
        read_samples(sc, str(tiny.val), class_names=SYNSETS)


def test_a_reader_that_loses_a_sample_is_an_error(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = write_shards(tmp_path, 2, 4)
    plan = shards.plan(list_source(url))
    assert plan is not None
    monkeypatch.setitem(LAYOUTS, "lossy", lambda _: replace(plan, read=lossy))
    message = rf"^{url}/0[01]\.tar: 3 samples of a part of it, 4 when it was listed$"
    with pytest.raises(ShardError, match=message), readable_errors():
        read_samples(sc, url, layout="lossy").rdd.count()


def test_source_partitions_are_dealt_out_differently(tmp_path: Path) -> None:
    samples = [Sample(str(i), b"", None, "", i) for i in range(50)]
    deals = [[target for target, (place, _) in _scatter(index, samples, 1, 10) if place >= 0] for index in range(3)]
    assert deals[0] != deals[1] != deals[2]
    for deal in deals:
        for start in range(0, 50, 10):
            assert sorted(deal[start : start + 10]) == [*range(10)]


@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=6), partitions=st.integers(1, 12), seed=st.integers(0))
def test_dealing_out_is_even_for_any_numbers(counts: list[int], partitions: int, seed: int) -> None:
    got: Counter[int] = Counter(range(partitions))
    for index, count in enumerate(counts):
        samples = [Sample(str(i), b"", None, "", i) for i in range(count)]
        got.update(target for target, (place, _) in _scatter(index, samples, seed, partitions) if place >= 0)
    assert set(got) == set(range(partitions))
    assert sum(got.values()) == sum(counts) + partitions
    assert max(got.values()) - min(got.values()) <= len(counts)


def test_how_many_partitions_there_are_unless_told(sc: SparkContext, tiny: TinySet) -> None:
    samples = read_samples(sc, str(tiny.train))
    assert samples.size < 2**20
    for mib, partitions in ((0, 16), (16, 16), (17, 17), (64, 64), (4096, 64), (6400, 100)):
        assert replace(samples, size=mib * 2**20).shuffled(seed=0).rdd.getNumPartitions() == partitions
    with pytest.raises(ConfigError, match=r"^partitions must be at least 1, got 0$"):
        samples.shuffled(seed=0, partitions=0)


def test_a_damaged_shard_surfaces_as_our_error(sc: SparkContext, tmp_path: Path) -> None:
    url = write_shards(tmp_path, 20, 3)
    bad = tmp_path / "13.tar"
    bad.write_bytes(bad.read_bytes()[:2048])
    samples = read_samples(sc, url)  # as many shards are not looked into beforehand
    with pytest.raises(ShardError) as raised, readable_errors():
        samples.shuffled(seed=1, partitions=4).rdd.count()
    assert str(raised.value) == (
        f"{bad}: cut off at offset 2048: a tar ends with an end-of-archive mark, this one has none; "
        "copy or fetch the file again"
    )


def test_an_inner_tar_that_is_damaged_surfaces_too(sc: SparkContext, tiny: TinySet, tmp_path: Path) -> None:
    content = bytearray(tiny.train.read_bytes())
    part = plan_source(str(tiny.train)).parts[1]
    content[part.start + 3] ^= 1
    path = tmp_path / "train.tar"
    path.write_bytes(content)
    samples = read_samples(sc, str(path))
    with (
        pytest.raises(ShardError, match=f"^{path}: not a tar at offset {part.start}: bad checksum, it begins with "),
        readable_errors(),
    ):
        samples.rdd.count()


IMAGE = Sample("a", jpeg(1, 0), 0, "x.tar", 512)


def test_decoding_gives_each_sample_back_good_or_bad() -> None:
    broken = IMAGE._replace(key="b", data=b"no image", offset=1024)
    bare = IMAGE._replace(key="c", label=None, offset=2048)
    good, bad, unlabelled = decode_samples([IMAGE, broken, bare])
    assert isinstance(good, Image)
    assert good.sample is IMAGE
    assert good.pixels.shape == (32, 40, 3)
    assert bad == BadSample("b", "x.tar", 1024, "not an image in any format that Pillow knows")
    assert unlabelled == BadSample("c", "x.tar", 2048, "no label is given for its name")
    assert [type(outcome) for outcome in decode_samples([IMAGE, broken, bare], labelled=False)] == [
        Image, BadSample, Image,
    ]  # fmt: skip


BAD = BadSample("a", "x.tar", 0, "broken")


def test_ledgers_add_up() -> None:
    other = BAD._replace(key="b")
    assert Ledger(3, 2, (BAD,)) + Ledger(5, 4, (other,)) == Ledger(8, 6, (BAD, other))
    assert Ledger() + Ledger(3, 2, (BAD,)) == Ledger(3, 2, (BAD,))


@pytest.mark.parametrize(
    ("ledger", "message"),
    [
        (Ledger(3, 2, (BAD,)), None),
        (Ledger(1, 1), None),
        (Ledger(), "x: holds no sample"),
        (Ledger(1, 0, (BAD,)), "x: all 1 samples are bad; the first, a: broken"),
        (Ledger(4, 2, (BAD,)), "x: 4 samples went in, 2 good and 1 bad came out"),
        (Ledger(2, 2, (BAD,)), "x: 2 samples went in, 2 good and 1 bad came out"),
    ],
)
def test_a_ledger_that_does_not_add_up_is_an_error(ledger: Ledger, message: str | None) -> None:
    if message is None:
        ledger.check("x")
        return
    with pytest.raises(SampleError) as raised:
        ledger.check("x")
    assert str(raised.value) == message


def test_all_of_cifar10_shuffled(sc: SparkContext, cifar10: Path) -> None:
    samples = read_samples(sc, str(cifar10 / "ILSVRC2012_img_train.tar"))

    def summary(records: Iterable[Sample]) -> Iterable[tuple[int, Counter[int | None]]]:
        found = {sample.key: sample.label for sample in records}
        yield len(found), Counter(found.values())

    parts = samples.shuffled(seed=1).rdd.mapPartitions(summary).collect()
    assert len(parts) == 64
    assert sum(count for count, _ in parts) == 50_000
    assert sum((labels for _, labels in parts), Counter()) == dict.fromkeys(range(10), 5000)
    # The official tar has a class a part, and each part deals its 5,000 out evenly.
    assert all(labels[label] in (78, 79) for _, labels in parts for label in range(10))
