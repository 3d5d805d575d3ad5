"""The command `sparknet`. Each command says what it is doing on stderr and its result on stdout.

Heavy modules (pyspark, torch) are imported by the command that needs them: `sparknet --help` is quick.
"""

import json as json_module
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sparknet
from sparknet.errors import ConfigError, SparkNetError, StoppedError, cause_in

if TYPE_CHECKING:
    from pyspark import SparkContext
    from rich.console import Console

    from sparknet.loaders.blocks import Blocks
    from sparknet.loaders.samples import Samples
    from sparknet.train.config import TrainConfig

app = typer.Typer(
    help="Train deep networks inside Spark, around its data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

bench = typer.Typer(help="Benchmarks: compare the ratios, not the seconds.", no_args_is_help=True)
app.add_typer(bench, name="bench")

Source = Annotated[str, typer.Argument(help="URL or path of a tar, or of a folder of tars or images.")]
Layout = Annotated[
    str | None,
    typer.Option(
        help="Layout of SOURCE (kaggle, mnist, cifar, parquet, ilsvrc, webdataset, shards, folder), if not recognised."
    ),
]
LabelFile = Annotated[str | None, typer.Option(help="Label file: 'name index' a line, or the devkit's ground truth.")]
DevkitIds = Annotated[
    str | None, typer.Option(help="The devkit's table, 'ID WordNet-ID' a line; for its ground truth.")
]
MaxBad = Annotated[float, typer.Option(help="The largest share of bad samples in a set, 0 to 1.")]
Cache = Annotated[
    str, typer.Option(help="Decoded images are kept as they are (raw), or as JPEGs (jpeg), where space is short.")
]
CacheLimit = Annotated[
    float | None,
    typer.Option(help="The most that decoded images may take on a host's disk, 10^9 bytes; all there is if not given."),
]
Master = Annotated[str | None, typer.Option(help="Spark's master URL; local[*,4] if not given.")]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A setting of Spark's; once for each, as for spark-submit."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, the last line on stdout.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the stack trace of an error too.")] = False,
) -> None:
    if debug:
        _shown.append("trace")
    if version:
        typer.echo(f"sparknet {sparknet.__version__}")
        raise typer.Exit


@app.command()
def inspect(
    source: Source,
    layout: Layout = None,
    labels: LabelFile = None,
    devkit_ids: DevkitIds = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet of 50 random images, a PNG.")] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Read and decode every sample of SOURCE: layout, counts, classes, bad samples."""
    from sparknet.command import running_spark
    from sparknet.loaders.samples import numbered
    from sparknet.loaders.survey import check_sheet, save_sheet, survey
    from sparknet.train.report import console, spark_progress

    if sheet:
        check_sheet(sheet)
    screen = console()
    with running_spark(master, conf, screen) as sc:
        samples = _read(sc, source, layout, labels, devkit_ids)
        with spark_progress(sc, "reading and decoding", screen):
            found = survey(samples, thumbs=50 if sheet else 0)
        class_names = samples.class_names or numbered(found.per_class)
        if sheet:
            save_sheet(found, class_names, sheet)
    widths = sorted(width for width, _ in found.sizes)
    heights = sorted(height for _, height in found.sizes)
    result = {
        "source": source,
        "layout": samples.layout,
        "samples": found.ledger.seen,
        "classes": len(class_names),
        "bad": len(found.ledger.bad),
        "unlabelled": found.unlabelled,
        "width": [widths[0], widths[-1]],
        "height": [heights[0], heights[-1]],
        "per_class": {name: found.per_class[index] for index, name in enumerate(class_names)},
        "bad_samples": [bad._asdict() for bad in found.ledger.bad],
    }
    if json:
        _print_json(result)
        return
    counts = [found.per_class[index] for index in range(len(class_names))]
    spread = f", {min(counts):,} to {max(counts):,} images each" if counts else ""
    typer.echo(f"layout      {samples.layout}")
    typer.echo(f"samples     {found.ledger.seen:,}")
    typer.echo(f"classes     {len(counts):,}{spread}")
    typer.echo(f"size        {widths[0]} x {heights[0]} to {widths[-1]} x {heights[-1]} pixels")
    hint = "  (name their label file with --labels)" if found.unlabelled and not labels else ""
    typer.echo(f"unlabelled  {found.unlabelled:,}{hint}")
    typer.echo(f"bad         {len(found.ledger.bad):,}")
    for bad in found.ledger.bad:
        typer.echo(f"  {bad.key}  ({bad.url}, offset {bad.offset}): {bad.reason}")
    if sheet:
        typer.echo(f"sheet       {sheet}")


@app.command()
def train(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Argument(help="URL or path of a tar, or of a folder of tars or images.")
    ] = None,
    net: Annotated[
        str | None, typer.Option(help="A network by name (cifar10_quick, lenet), or module:function of your own.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; made, and must hold no other run.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder, by its own settings; only --rounds may be others."),
    ] = None,
    val: Annotated[str | None, typer.Option(help="Validation set: a tar, or a folder of tars or images.")] = None,
    layout: Layout = None,
    labels: LabelFile = None,
    val_labels: LabelFile = None,
    devkit_ids: DevkitIds = None,
    max_bad: MaxBad = 0.01,
    cache: Cache = "raw",
    cache_limit_gb: CacheLimit = None,
    side: Annotated[
        int | None,
        typer.Option(help="Images are resized to this height and width, pixels; as published, or 256, if not given."),
    ] = None,
    crop: Annotated[int | None, typer.Option(help="Height and width that the network sees, pixels.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="K, how many train at once; all the master's slots if not given.")
    ] = None,
    tau: Annotated[int, typer.Option(help="Iterations of a worker between two averages.")] = 10,
    rounds: Annotated[int, typer.Option(help="How often to average.")] = 100,
    batch: Annotated[int | None, typer.Option(help="Samples in a worker's minibatch.")] = None,
    base_lr: Annotated[float | None, typer.Option("--lr", help="Base learning rate.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of the solver.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="L2 weight decay.")] = None,
    policy: Annotated[
        str | None, typer.Option("--lr-policy", help="fixed, step, exp, inv, multistep or poly, as in Caffe.")
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="Constant of step, exp, inv and multistep.")] = None,
    power: Annotated[float | None, typer.Option(help="Constant of inv and poly.")] = None,
    step_size: Annotated[int | None, typer.Option(help="Iterations; for step.")] = None,
    step_values: Annotated[
        list[int] | None, typer.Option("--step-value", help="Iteration of a drop; for multistep, once for each.")
    ] = None,
    max_iterations: Annotated[int | None, typer.Option(help="Where poly reaches 0; tau * rounds if not given.")] = None,
    momentum_mode: Annotated[str | None, typer.Option(help="Momentum at an average: kept, reset or averaged.")] = None,
    order: Annotated[
        str | None,
        typer.Option(help="Which samples come: epoch, global, window or replacement; see docs/loaders.md."),
    ] = None,
    tail: Annotated[
        str | None, typer.Option(help="An epoch's last samples, of epoch: carried to the next, kept or dropped.")
    ] = None,
    mirror: Annotated[bool | None, typer.Option(help="Mirror half of the training samples.")] = None,
    resized_crop: Annotated[
        bool | None,
        typer.Option(
            "--random-resized-crop/--random-crop", help="Train on windows of random size and shape, or of the crop's."
        ),
    ] = None,
    pca_colour: Annotated[
        float | None, typer.Option(help="Standard deviation of AlexNet's shifts of colour; theirs is 0.1.")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="What is subtracted: the training set's image or channel mean, none, or values R,G,B."),
    ] = None,
    bgr: Annotated[bool | None, typer.Option("--bgr/--rgb", help="The order of the network's input channels.")] = None,
    scale: Annotated[float | None, typer.Option(help="Factor of the network's input.")] = None,
    prefetch: Annotated[
        int | None, typer.Option(help="Minibatches that a worker makes ahead of the network, in a thread of its own.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order, crops and dropout.")] = 0,
    test_every: Annotated[int, typer.Option(help="Rounds between two evaluations.")] = 50,
    test_crops: Annotated[
        int, typer.Option(help="Crops of an image in an evaluation: 1, its centre; or 10, mirrored corners too.")
    ] = 1,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between two checkpoints.")] = 50,
    keep_checkpoints: Annotated[int, typer.Option(help="How many of the newest checkpoints to keep.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of torch in each worker.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "cpu",
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Train a network on SOURCE. Settings that are not given are the network's published ones."""
    from sparknet.command import running_spark
    from sparknet.session import ship_module, worker_slots
    from sparknet.train import checkpoint
    from sparknet.train.models import NETWORKS, published_side
    from sparknet.train.report import RoundProgress, console
    from sparknet.train.trainer import check_fits
    from sparknet.train.trainer import train as run_training

    sys.path.insert(0, "")  # a network of one's own lies in the folder that one is in
    if resume is not None:
        folder = resume
        given_too = _given(context) - {"resume", "rounds", "workers", "cache_limit_gb", "master", "conf", "json"}
        if given_too:
            raise ConfigError(
                f"--resume takes all settings from {resume}; beside it, only --rounds, --workers, --cache-limit-gb, "
                f"--master, --conf and --json may be given, not {', '.join(_as_typed(context, given_too))}"
            )
        settings = checkpoint.load_settings(resume)
        others = {name: context.params[name] for name in {"rounds", "workers"} & _given(context)}
        config = replace(settings.config, **others)
    else:
        if source is None or net is None or out is None:
            raise ConfigError(
                f"train needs SOURCE, --net ({', '.join(NETWORKS)}, or module:function of your own) and --out; "
                "or --resume RUN"
            )
        checkpoint.refuse_used(out)
        config = _config(net, context.params)
        settings = checkpoint.Settings(
            config=config,
            side=published_side(net) if side is None else side,
            class_names=(),
            origin=_origin(context.params),
        )
        folder = out
    from_, screen = settings.origin, console()
    if resume is not None:
        screen.print(f"going on from round {checkpoint.saved_rounds(resume)}")
    with _resumable(folder), running_spark(master, conf, screen) as sc:
        if workers is None and resume is None:
            config = replace(config, workers=worker_slots(sc))
        if ":" in config.net:
            ship_module(sc, config.net.partition(":")[0])
        samples = _read(sc, from_["source"], from_["layout"], from_["labels"], from_["devkit_ids"])
        if samples.class_names or not samples.labelled:  # else only reading all samples tells how many there are
            check_fits(config, sc, classes=len(samples.class_names), side=settings.side)
        val_samples = None
        if from_["val"] is not None:
            val_samples = _read(sc, from_["val"], None, from_["val_labels"], from_["devkit_ids"], samples.class_names)
        cached = partial(
            _cache,
            side=settings.side,
            max_bad=from_["max_bad"],
            kept_as=from_["cache"],
            limit_gb=cache_limit_gb,
            screen=screen,
        )
        train_set = cached(samples.shuffled(config.seed), "training set")
        val_set = cached(val_samples, "validation set") if val_samples else None
        with RoundProgress(config.rounds, screen) as progress:
            result = run_training(
                train_set, val_set, config, out=folder, resume=resume is not None, origin=from_, on_round=progress
            )
    summary = {
        "run": str(folder),
        "top1": result.scores.top1 if result.scores else None,
        "top5": result.scores.top5 if result.scores else None,
        "rounds": result.rounds,
        "images": result.images,
        "images_per_s": round(result.images_per_s, 1),
        "seconds": round(result.seconds, 2),
    }
    if json:
        _print_json(summary)
        return
    scores = f"top-1 {result.scores.top1:.2%}, top-5 {result.scores.top5:.2%}, after " if result.scores else ""
    typer.echo(
        f"{scores}{result.rounds:,} rounds and {result.images:,} images in {result.seconds:.1f} s "
        f"({result.images_per_s:,.0f} images/s)"
    )
    typer.echo(f"run         {folder}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder that `sparknet train` was given as --out.")],
    source: Source,
    layout: Layout = None,
    labels: LabelFile = None,
    devkit_ids: DevkitIds = None,
    max_bad: MaxBad = 0.01,
    cache: Cache = "raw",
    cache_limit_gb: CacheLimit = None,
    test_crops: Annotated[
        int | None, typer.Option(help="Crops of an image, 1 or 10; as in training if not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, or auto; as in training if not given.")] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Score a trained network on every image of SOURCE: top-1, top-5."""
    from sparknet.command import running_spark
    from sparknet.session import ship_module
    from sparknet.train import checkpoint
    from sparknet.train.evaluate import evaluate as score
    from sparknet.train.report import console, spark_progress
    from sparknet.train.worker import check_device

    sys.path.insert(0, "")
    _check_cache(cache)
    trained = checkpoint.load(run)
    settings = trained.settings
    config = replace(
        settings.config,
        device=device or settings.config.device,
        test_crops=settings.config.test_crops if test_crops is None else test_crops,
    )
    screen = console()
    with running_spark(master, conf, screen) as sc:
        if ":" in settings.config.net:
            ship_module(sc, settings.config.net.partition(":")[0])
        check_device(config.device, sc)
        samples = _read(sc, source, layout, labels, devkit_ids, settings.class_names)
        blocks = _cache(samples, "images", settings.side, max_bad, cache, cache_limit_gb, screen)
        with spark_progress(sc, "evaluating", screen):
            scores = score(blocks, trained.weights, trained.mean, config, len(settings.class_names))
    if json:
        _print_json({"top1": scores.top1, "top5": scores.top5, "images": scores.samples})
        return
    typer.echo(f"top-1 {scores.top1:.2%}, top-5 {scores.top5:.2%} of {scores.samples:,} images")


@app.command()
def doctor(master: Master = None, conf: Conf = None, json: Json = False) -> None:
    """Look whether what training needs is there and works, and say what to do where it is not."""
    from rich.console import Console

    from sparknet.doctor import Result, examine

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    results: list[Result] = []
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    for result in examine(master, conf or (), screen, trace="trace" in _shown):
        results.append(result)
        if not json:
            typer.echo(result.line(width))
    failed = [result.name for result in results if result.status == "failed"]
    if json:
        _print_json({"ok": not failed, "checks": [result._asdict() for result in results]})
    else:
        typer.echo(f"\ntraining cannot run: {', '.join(failed)}" if failed else "\ntraining can run")
    if failed:
        raise typer.Exit(1)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Tell a person who stops a run how to go on with it."""
    try:
        yield
    except StoppedError as error:
        from sparknet.train.checkpoint import holds_run, saved_rounds

        if holds_run(folder):
            error.add_note(f"to go on from round {saved_rounds(folder)}: sparknet train --resume {folder}")
        raise


# What main() is to show of an error besides its line.
_shown: list[str] = []


@bench.command("minibatch")
def bench_minibatch(
    images: Annotated[int, typer.Option(help="Random images of 256 x 256 to draw from; a multiple of 256.")] = 2048,
    turns: Annotated[int, typer.Option(help="How often each way has its turn.")] = 5,
    seconds: Annotated[float, typer.Option(help="Of each turn.")] = 1.0,
    others: Annotated[bool, typer.Option("--others/--no-others", help="Measure other loaders too.")] = True,
    json: Json = False,
) -> None:
    """How fast minibatches come from cached images on one core, beside the machine's limits and other loaders."""
    from rich.filesize import decimal

    from sparknet.bench.minibatch import measure

    measured = measure(images, turns, seconds, others)
    rates, waits, memory = measured
    if json:
        _print_json({name: [line._asdict() for line in lines] for name, lines in measured._asdict().items()})
        return
    head = "crops of 227 x 227, minibatches of 256"
    width = max(len(head), *(len(rate.name) for rate in rates))
    typer.echo(f"{head:{width}}  images/s a core  of the limit")
    for rate in rates:
        ratio = "" if rate.name == rate.limit else f"{rate.ratio:.0%}"
        typer.echo(f"{rate.name:{width}}  {rate.images_per_s:15,.0f}  {ratio:>12}".rstrip())
    for wait in waits:
        typer.echo(f"a stub that eats 5,000 images/s, {wait.name}: waits {wait.share:.1%} of the time, 2 prefetched")
    for share in memory:
        typer.echo(
            f"memory of a worker's own, {share.images:,} images in its share: {decimal(share.own_bytes)}, of which "
            f"{decimal(share.buffers_bytes)} are a minibatch's; {decimal(share.mapped_bytes)} of files mapped"
        )


def main() -> None:
    """Run the command line; a mistake ends in one line on stderr and the exit status of its error."""
    signal.signal(signal.SIGINT, _end)
    try:
        app()
    except Exception as error:  # noqa: BLE001 - whatever it is, a person gets a line, and its cause with --debug
        if "trace" in _shown:
            traceback.print_exception(error)
        if isinstance(error, SparkNetError):
            line, status = str(error), error.exit_status
        else:
            cause = cause_in(str(error)) or f"{type(error).__name__}: {error}"  # of a failed Spark job, what failed it
            line, status = f"failed: {cause}; `sparknet --debug ...` shows where", 1
        line = "; ".join([line, *getattr(error, "__notes__", ())])
        typer.echo(f"sparknet: {' '.join(line.split())}", err=True)
        sys.exit(status)


def _end(*_: object) -> None:
    """End at Ctrl-C where there is nothing to be put in order: before Spark is started, and after."""
    sys.stderr.write("sparknet: stopped\n")
    sys.stderr.flush()
    os._exit(StoppedError.exit_status)


def _config(net: str, given: dict[str, Any]) -> "TrainConfig":
    """Take a network's published settings, and what was given instead: parameters are named as the fields are."""
    from sparknet.train.models import published

    base = published(net)
    given = {name: value for name, value in given.items() if value not in (None, (), [])}
    if "," in given.get("mean", ""):
        given["mean"] = _values(given["mean"])
    solver = {field.name: given[field.name] for field in fields(base.solver) if field.name in given}
    if solver.get("policy") == "poly":
        solver.setdefault("max_iterations", given["tau"] * given["rounds"])
    chosen = {field.name: given[field.name] for field in fields(base) if field.name in given}
    return replace(base, **chosen | {"solver": replace(base.solver, **solver)})


def _check_cache(kept_as: str) -> None:
    if kept_as not in ("raw", "jpeg"):
        raise ConfigError(f"--cache must be raw or jpeg, got {kept_as}")


def _values(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(value) for value in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--mean takes image, channel, none, or three values R,G,B, got {text}") from error


def _origin(given: dict[str, Any]) -> dict[str, Any]:
    """Take where the sets come from, so that a run can be resumed from another folder."""
    _check_cache(given["cache"])
    if given["val_labels"] and not given["val"]:
        raise ConfigError(f"--val-labels {given['val_labels']} labels no set; name it with --val")
    origin = {"layout": given["layout"], "max_bad": given["max_bad"], "cache": given["cache"]}
    for name in ("source", "labels", "val", "val_labels", "devkit_ids"):
        url = given[name]
        origin[name] = str(Path(url).absolute()) if url is not None and "://" not in url else url
    return origin


def _read(
    sc: "SparkContext",
    source: str,
    layout: str | None,
    labels: str | None,
    devkit_ids: str | None,
    class_names: tuple[str, ...] = (),
) -> "Samples":
    from sparknet.loaders.labels import read_labels
    from sparknet.loaders.samples import read_samples

    table = read_labels(labels, devkit_ids, class_names) if labels else None
    samples = read_samples(sc, source, layout=layout, labels=table, class_names=class_names)
    samples.check_labels()
    return samples


def _cache(
    samples: "Samples",
    what: str,
    side: int,
    max_bad: float,
    kept_as: str,
    limit_gb: float | None,
    screen: "Console",
) -> "Blocks":
    from sparknet.loaders.block import JPEG_QUALITY
    from sparknet.loaders.blocks import cache
    from sparknet.train.report import spark_progress

    with spark_progress(samples.rdd.context, f"decoding the {what}", screen):
        limit = None if limit_gb is None else int(limit_gb * 1e9)
        blocks = cache(samples, side, max_bad, limit, quality=JPEG_QUALITY if kept_as == "jpeg" else None)
    ledger = blocks.ledger
    if ledger.bad:
        first = ledger.bad[0]
        screen.print(f"{what}: {len(ledger.bad):,} of {ledger.seen:,} samples are bad; {first.key}: {first.reason}")
    return blocks


def _given(context: typer.Context) -> set[str]:
    """Name the parameters that were given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _as_typed(context: typer.Context, names: set[str]) -> list[str]:
    """Name parameters as the command line does: `--lr`, not `base_lr`."""
    return sorted(
        parameter.opts[0] if parameter.param_type_name == "option" else str(parameter.name).upper()
        for parameter in context.command.params
        if parameter.name in names
    )


def _print_json(result: dict[str, Any]) -> None:
    typer.echo(json_module.dumps(result))
