"""Preprocess images inside Spark, then train on them: copy this page and begin your own from it.

    spark-submit --conf spark.log.level=WARN scripts/preprocess_then_train.py TRAIN.tar VAL.tar val.txt RUN

TRAIN.tar is ILSVRC2012_img_train.tar or made like it (an inner tar a class), VAL.tar a flat tar, val.txt its labels,
'name index' a line; each a path or a URL. RUN is the folder to make. What follows is the command `sparknet train`,
step by step.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from sparknet.errors import SparkNetError
from sparknet.loaders.blocks import cache
from sparknet.loaders.labels import read_labels
from sparknet.loaders.samples import read_samples
from sparknet.session import start
from sparknet.train.checkpoint import refuse_used
from sparknet.train.models import published
from sparknet.train.trainer import RoundMetrics, train


def main() -> None:
    """Read the command line, preprocess, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_tar")
    parser.add_argument("val_tar")
    parser.add_argument("val_labels")
    parser.add_argument("out", type=Path)
    parser.add_argument("--net", default="cifar10_quick", help="a network by name, or module:function")
    parser.add_argument("--side", type=int, default=32, help="images are resized to this, pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tau", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()

    refuse_used(options.out)  # now, not after an hour's decoding
    sc = start(app_name="preprocess_then_train")  # spark-submit's own context, where it started this
    sc.setLogLevel("WARN")  # spark-submit prints a dozen lines a task

    train_samples = read_samples(sc, options.train_tar)
    labels = read_labels(options.val_labels, class_names=train_samples.class_names)
    val_samples = read_samples(sc, options.val_tar, labels=labels, class_names=train_samples.class_names)
    val_samples.check_labels()

    # Preprocess: every sample is read, decoded and resized once, into blocks cached on the executors.
    train_set = cache(train_samples.shuffled(seed=0), options.side)
    val_set = cache(val_samples, options.side)
    for name, images in (("train", train_set), ("val", val_set)):
        print(f"{name}: {images.ledger.good:,} images, {len(images.ledger.bad)} bad", flush=True)

    # Train: the network's published settings, but for what is said here.
    config = dataclasses.replace(
        published(options.net), crop=options.side, workers=options.workers, tau=options.tau, rounds=options.rounds
    )
    result = train(train_set, val_set, config, out=options.out, on_round=report)
    if result.scores is not None:
        print(f"top-1 {result.scores.top1:.2%}, {result.images_per_s:,.0f} images/s, run in {options.out}")
    sc.stop()


def report(metrics: RoundMetrics) -> None:
    """Say how it goes, after each evaluation."""
    if metrics.top1 is not None:
        print(f"round {metrics.round}: loss {metrics.loss:.3f}, top-1 {metrics.top1:.2%}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except SparkNetError as error:
        sys.exit(f"preprocess_then_train: {error}")
