"""The composed RDD of samples: planned, labelled, shuffled, and counted.

In: a URL. Out: an RDD of `Sample` (key, encoded image, label), each record of the source exactly once, and a ledger of
what became of them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from pyspark import RDD, Broadcast, SparkContext

from sparknet.errors import ConfigError, DecodeError, LabelError, SampleError, ShardError
from sparknet.loaders.decode import decode
from sparknet.loaders.labels import Labels
from sparknet.loaders.layouts import plan_source
from sparknet.loaders.layouts.plan import Again, Readable, Sample
from sparknet.session import readable_errors

_MIB = 1024 * 1024

# What a sample takes in a tar: its header.
_LEAST_BYTES = 512

# Images whose labels are looked up before a pass begins.
_LOOKED_UP = 20


class BadSample(NamedTuple):
    """A sample that cannot be used, and why: undecodable, or without a label."""

    key: str
    url: str
    offset: int
    reason: str


class Image(NamedTuple):
    """A decoded sample. `pixels` is (H, W, 3) uint8, RGB."""

    sample: Sample
    pixels: np.ndarray


@dataclass(frozen=True)
class Ledger:
    """What a pass over samples came to.

    Attributes:
        seen: samples that went in.
        good: samples that came out.
        bad: the others, by name.
    """

    seen: int = 0
    good: int = 0
    bad: tuple[BadSample, ...] = ()

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger(self.seen + other.seen, self.good + other.good, self.bad + other.bad)

    def check(self, source: str) -> None:
        """Make sure that nothing was lost.

        Raises:
            SampleError: seen is not good + bad, or nothing good is left.
        """
        if self.seen != self.good + len(self.bad):
            raise SampleError(
                f"{source}: {self.seen} samples went in, {self.good} good and {len(self.bad)} bad came out"
            )
        if not self.seen:
            raise SampleError(f"{source}: holds no sample")
        if not self.good:
            first = self.bad[0]
            raise SampleError(f"{source}: all {self.seen} samples are bad; the first, {first.key}: {first.reason}")


@dataclass(frozen=True, kw_only=True)
class BadLimit:
    """How many bad samples a set may have.

    Attributes:
        source: names the set in errors.
        share: the largest share of bad samples, 0 to 1.
        most: samples that the set can hold at all.
    """

    source: str
    share: float
    most: int

    def check(self, bad: Sequence[BadSample], seen: int | None = None) -> None:
        """Make sure that there are not too many.

        Args:
            bad: those that there are.
            seen: samples in the set; while that is not known, too many is what would be for the most it can hold.

        Raises:
            SampleError: there are.
        """
        if len(bad) > self.share * (self.most if seen is None else seen):
            of, first = f"at most {self.most:,}" if seen is None else f"{seen:,}", bad[0]
            raise SampleError(
                f"{self.source}: {len(bad):,} of {of} samples are bad, more than {self.share:.2%}; the first, "
                f"{first.key} ({first.url}, offset {first.offset}): {first.reason}; mend them, or raise --max-bad"
            )


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A source's samples as an RDD.

    Attributes:
        rdd: `Sample` records. Lazy: each action reads the source again.
        source: the URL.
        layout: the layout's name.
        class_names: by class index; empty where there is no label, or only reading all samples tells.
        labelled: whether the samples have labels.
        size: total of the parts to be read, bytes.
        most: samples that there can be.
        again: reads samples again, on an executor that has lost them.
    """

    rdd: RDD[Sample]
    source: str
    layout: str
    class_names: tuple[str, ...]
    labelled: bool
    size: int
    most: int
    again: Again
    _labels: Broadcast[dict[str, int]] | None = field(default=None, repr=False)
    _labels_url: str | None = None

    def shuffled(self, seed: int, partitions: int | None = None) -> "Samples":
        """Spread the samples evenly over partitions in random order, by Spark's shuffle of their encoded bytes.

        Which partition a sample goes to, and its place there, follow from the seed and the source alone: not from
        timing, nor from where a task ran.

        Args:
            seed: of the order.
            partitions: of the result. One for each MiB if None, from 16 to 64; or one for each 64 MiB where that is
                more.

        Raises:
            ConfigError: partitions is below 1.
        """
        if partitions is None:
            # From the data alone: the same on every machine.
            partitions = max(16, min(64, self.size // _MIB), self.size // (64 * _MIB))
        if partitions < 1:
            raise ConfigError(f"partitions must be at least 1, got {partitions}")
        scattered = self.rdd.mapPartitionsWithIndex(partial(_scatter, seed=seed, partitions=partitions))
        rdd = scattered.partitionBy(partitions, int).mapPartitions(_in_drawn_order, preservesPartitioning=True)
        return replace(self, rdd=rdd)

    def check_labels(self) -> None:
        """Make sure, before all is read, that a label file is of these images: that it names one of the first.

        Raises:
            LabelError: it names none.
            SourceError, ShardError: they cannot be read.
        """
        if self._labels is None:
            return
        with readable_errors():
            first = self.rdd.map(_name).take(_LOOKED_UP)
        if first and all(label is None for _, label in first):
            named = next(iter(self._labels.value))
            raise LabelError(
                f"{self._labels_url}: labels no image of {self.source}, whose first is {first[0][0]}, but such as "
                f"{named}; give the label file of that set"
            )

    def close(self) -> None:
        """Release the labels on the executors. The RDD cannot be computed any more."""
        if self._labels is not None:
            self._labels.destroy()


def read_samples(
    sc: SparkContext,
    url: str,
    *,
    layout: str | None = None,
    labels: Labels | None = None,
    class_names: tuple[str, ...] = (),
) -> Samples:
    """Plan the reading of a source, as an RDD of its samples.

    The driver looks at file names and tar headers only.

    Args:
        sc: where to read.
        url: as for `plan_source`.
        layout: its layout; recognised where None.
        labels: classes by key, for the samples of a layout that holds none.
        class_names: by class index, where they are known from another source (a validation set's, from the train
            set). The layout's own come from the source itself.

    Returns:
        Samples in the order of the source, in as many partitions as the plan has parts.

    Raises:
        SourceError, ShardError, LabelError, ConfigError: as for `plan_source`.
    """
    plan = plan_source(url, layout)
    if class_names and plan.class_names and class_names != plan.class_names:
        pairs = enumerate(itertools.zip_longest(plan.class_names, class_names, fillvalue="none"))
        index, own, other = next((i, own, other) for i, (own, other) in pairs if own != other)
        raise LabelError(
            f"{url}: its classes are not those of the train set: class {index} is {own} here, {other} there"
        )
    labelled = plan.labelled or bool(plan.class_names) or labels is not None
    if class_names and not labelled:
        raise LabelError(
            f"{url}: nothing in it tells the class of an image; name its label file (--labels; --val-labels for --val)"
        )
    names = class_names or plan.class_names
    if labels and names and labels.classes > len(names):
        raise LabelError(f"{labels.url}: names class {labels.classes - 1}, but there are {len(names)} classes")
    broadcast = sc.broadcast(dict(labels.by_key)) if labels else None
    if labels and not names:
        names = tuple(str(index) for index in range(labels.classes))
    rdd = sc.parallelize(plan.parts, len(plan.parts)).mapPartitions(
        partial(_read_parts, read=plan.read, labels=broadcast)
    )
    return Samples(
        rdd=rdd,
        source=url,
        layout=plan.layout,
        class_names=names,
        labelled=labelled,
        size=sum(part.length for part in plan.parts),
        again=plan.again,
        most=sum(part.length // _LEAST_BYTES if part.samples is None else part.samples for part in plan.parts),
        _labels=broadcast,
        _labels_url=labels.url if labels else None,
    )


class Counted(Iterator[Sample]):
    """Samples on their way into a pass, and `seen`, how many have gone by.

    Args:
        samples: to pass on.
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.seen = 0
        self._samples = iter(samples)

    def __next__(self) -> Sample:
        sample = next(self._samples)
        self.seen += 1
        return sample


def decode_samples(samples: Iterable[Sample], labelled: bool = True) -> Iterator[Image | BadSample]:
    """Decode samples one by one; each comes out, as an image or as a bad sample.

    Args:
        samples: to decode.
        labelled: whether a sample without a label is bad.
    """
    for sample in samples:
        try:
            if labelled and sample.label is None:
                raise DecodeError("no label is given for its name")
            yield Image(sample, decode(sample.data))
        except DecodeError as error:
            yield BadSample(sample.key, sample.url, sample.offset, str(error))


def _read_parts(
    parts: Iterable[Readable],
    read: Callable[[Any], Iterator[Sample]],
    labels: Broadcast[dict[str, int]] | None,
) -> Iterator[Sample]:
    for part in parts:
        count = 0
        for sample in read(part):
            count += 1
            yield sample if labels is None else _labelled(sample, labels.value)
        if part.samples is not None and count != part.samples:
            raise ShardError(f"{part.url}: {count} samples of a part of it, {part.samples} when it was listed")


def _labelled(sample: Sample, labels: dict[str, int]) -> Sample:
    # Label files name an image as it is stored, or by its last component (the original SparkNet's).
    label = labels.get(sample.key, labels.get(sample.key.rsplit("/", 1)[-1]))
    if label is not None and sample.label not in (None, label):
        raise LabelError(
            f"{sample.url}: {sample.key} is of class {sample.label}, by sorted WordNet ID, but the label file says "
            f"{label}; leave the label file out, or mend it"
        )
    return sample._replace(label=label)


def numbered(labels: Iterable[int]) -> tuple[str, ...]:
    """Name classes by their numbers, where nothing else names them: 0 to the highest that occurs."""
    return tuple(str(index) for index in range(max(labels, default=-1) + 1))


def _name(sample: Sample) -> tuple[str, int | None]:
    return sample.key, sample.label


# A record of the shuffle: place in the order, and a sample; or, from each part, how many samples it sent there.
_Dealt = tuple[int, Sample | int]


def _scatter(index: int, samples: Iterable[Sample], seed: int, partitions: int) -> Iterator[tuple[int, _Dealt]]:
    """Deal samples out: each run of `partitions` of them goes to all partitions, in an order drawn anew."""
    rng = np.random.default_rng((seed, 1, index))
    targets: list[int] = []
    sent = [0] * partitions
    for sample in samples:
        if not targets:
            targets = rng.permutation(partitions).tolist()
        target = targets.pop()
        sent[target] += 1
        yield target, (int(rng.integers(2**62)), sample)
    for target, count in enumerate(sent):
        yield target, (-1, count)


def _in_drawn_order(records: Iterable[tuple[int, _Dealt]]) -> Iterator[Sample]:
    samples, sent = [], 0
    for _, (place, sample) in records:
        if isinstance(sample, int):
            sent += sample
        else:
            samples.append((place, sample.key, sample))
    if len(samples) != sent:
        raise SampleError(f"the shuffle lost samples: {sent} were sent to a partition, {len(samples)} arrived")
    # Blocks of a shuffle arrive in an order of their own each time.
    samples.sort(key=lambda record: record[:2])
    # How many there are shows in the iterator's length hint: whoever writes them knows how much room they need.
    return iter([sample for _, _, sample in samples])
