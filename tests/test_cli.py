import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pyspark import SparkContext
from typer.testing import CliRunner

import sparknet
from sparknet import cli
from sparknet import command as command_module
from sparknet.errors import SparkNetError
from sparknet.train import checkpoint
from sparknet.train.config import SolverConfig, TrainConfig
from sparknet.train.models import published
from tests.sets import SYNSETS, TinySet, jpeg, tar_bytes
from tests.train.test_checkpoint import write

ROOT = Path(__file__).parents[1]

OWN_NET = """
from torch import nn

def build(classes, crop):
    return nn.Sequential(nn.AvgPool2d(crop // 2), nn.Flatten(), nn.Linear(12, classes))
"""


# ---- Commands as a person types them: a process of their own, with a Spark of their own.


def sparknet_command(*words: object, cwd: Path, tmp: Path) -> subprocess.CompletedProcess[str]:
    code = "from sparknet.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp)},
        capture_output=True,
        text=True,
        check=False,
    )


def json_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The result, which is all there is on stdout."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, done.stdout
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def logs(folder: Path) -> list[Path]:
    return list(folder.glob("sparknet-*.log"))


@pytest.fixture(scope="module")
def own_run(tiny: TinySet, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A network from a file of one's own, trained by the command."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_net.py").write_text(OWN_NET)
    words = f"""train {tiny.train} --val {tiny.val} --val-labels {tiny.val_txt} --net own_net:build --side 16 --crop 14
        --workers 2 --tau 3 --rounds 4 --test-every 3 --batch 8 --lr 0.05 --scale 0.015625 --mirror --out run
        --master local[2,4] --json""".split()
    done = sparknet_command(*words, cwd=folder, tmp=folder)
    return folder, json_line(done)


@pytest.mark.heavy
def test_train_gives_its_result_as_json(own_run: tuple[Path, dict[str, Any]]) -> None:
    folder, result = own_run
    assert set(result) == {"run", "top1", "top5", "rounds", "images", "images_per_s", "seconds"}
    assert (result["run"], result["rounds"], result["images"]) == ("run", 4, 2 * 3 * 8 * 4)
    assert 1 / 3 < result["top1"] <= result["top5"] == 1
    assert result["images_per_s"] == pytest.approx(result["images"] / result["seconds"], rel=0.05)
    assert logs(folder) == []
    config = checkpoint.load(folder / "run").settings.config
    assert config == TrainConfig(
        net="own_net:build",
        crop=14,
        workers=2,
        tau=3,
        rounds=4,
        test_every=3,
        batch=8,
        scale=1 / 64,
        mirror=True,
        solver=SolverConfig(base_lr=0.05),
    )
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["top1"] == result["top1"]
    assert len(lines) == 4


@pytest.mark.heavy
def test_evaluate_of_a_copy_in_a_new_process_gives_the_same_to_the_digit(
    own_run: tuple[Path, dict[str, Any]], tiny: TinySet, tmp_path: Path
) -> None:
    folder, trained = own_run
    shutil.copytree(folder / "run", tmp_path / "copy", ignore=shutil.ignore_patterns("metrics.jsonl"))
    (tmp_path / "own_net.py").write_text(OWN_NET)
    # The labels by the other way: the devkit's numbers and its table.
    words = (
        f"evaluate copy {tiny.val} --labels {tiny.ground_truth} --devkit-ids {tiny.devkit_ids} --master local[1] --json"
    )
    result = json_line(sparknet_command(*words.split(), cwd=tmp_path, tmp=tmp_path))
    assert result == {"top1": trained["top1"], "top5": trained["top5"], "images": 31}
    assert logs(tmp_path) == []


@pytest.mark.heavy
def test_a_run_resumed_from_another_folder_ends_as_one_that_was_never_stopped(
    own_run: tuple[Path, dict[str, Any]], tiny: TinySet, tmp_path: Path
) -> None:
    straight, expected = own_run
    begun, gone_on = tmp_path / "begun", tmp_path / "gone on"
    for folder in (begun, gone_on):
        folder.mkdir()
        (folder / "own_net.py").write_text(OWN_NET)
    # The sets by relative paths: where the run is resumed, these lead nowhere.
    sets = [os.path.relpath(path, begun) for path in (tiny.train, tiny.val, tiny.val_txt)]
    words = f"""train {sets[0]} --val {sets[1]} --val-labels {sets[2]} --net own_net:build --side 16 --crop 14
        --workers 2 --tau 3 --rounds 2 --test-every 3 --batch 8 --lr 0.05 --scale 0.015625 --mirror --out run
        --master local[2,4] --json""".split()
    assert json_line(sparknet_command(*words, cwd=begun, tmp=begun))["rounds"] == 2
    words = ["train", "--resume", "../begun/run", "--rounds", "4", "--master", "local[2,4]", "--json"]
    result = json_line(sparknet_command(*words, cwd=gone_on, tmp=gone_on))
    times = {"run", "seconds", "images_per_s"}
    assert result["run"] == "../begun/run"
    assert {name: value for name, value in result.items() if name not in times} == {
        name: value for name, value in expected.items() if name not in times
    }
    for name in ("weights.safetensors", "mean.safetensors"):
        assert (begun / "run" / name).read_bytes() == (straight / "run" / name).read_bytes()
    settings, others = checkpoint.load_settings(begun / "run"), checkpoint.load_settings(straight / "run")
    assert replace(settings, origin={}) == replace(others, origin={})
    paths = [settings.origin[name] for name in ("source", "val", "val_labels")]
    assert [path and Path(path).resolve() for path in paths] == [tiny.train, tiny.val, tiny.val_txt]
    assert logs(gone_on) == []


@pytest.mark.heavy
def test_inspect_names_every_bad_sample_with_its_reason(tiny: TinySet, tmp_path: Path) -> None:
    inner = {}
    for label, synset in enumerate(SYNSETS):
        names = [key for key, (_, index) in tiny.train_images.items() if index == label]
        members = {key.split("/")[1]: tiny.train_images[key][0] for key in names}
        if label == 1:
            members |= {f"{synset}_empty.JPEG": b"", f"{synset}_text.JPEG": b"404 not found", f"{synset}_cut.JPEG": b""}
            members[f"{synset}_cut.JPEG"] = jpeg(1, 1)[:300]
        inner[f"{synset}.tar"] = tar_bytes(members)
    (tmp_path / "planted.tar").write_bytes(tar_bytes(inner))

    result = json_line(sparknet_command("inspect", "planted.tar", "--json", cwd=tmp_path, tmp=tmp_path))
    assert result["layout"] == "ilsvrc"
    assert (result["samples"], result["classes"], result["bad"], result["unlabelled"]) == (66, 3, 3, 0)
    assert result["per_class"] == dict(zip(SYNSETS, (20, 21, 22), strict=True))
    assert (result["width"], result["height"]) == ([40, 40], [32, 32])
    named = {bad["key"].split("_")[-1]: bad for bad in result["bad_samples"]}
    assert set(named) == {"empty.JPEG", "text.JPEG", "cut.JPEG"}
    assert all(bad["reason"] for bad in named.values())
    content = (tmp_path / "planted.tar").read_bytes()
    offset = named["text.JPEG"]["offset"]
    assert content[offset : offset + 13] == b"404 not found"
    assert logs(tmp_path) == []


def help_of(*words: str) -> tuple[str, set[str]]:
    """What the command prints, and the modules that it imported."""
    code = (
        "import sys; from sparknet.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "shows"),
    [("--help", "inside Spark"), ("train --help", "--momentum-mode"), ("--version", sparknet.__version__)],
)
def test_help_imports_nothing_heavy(words: str, shows: str) -> None:
    out, modules = help_of(*words.split())
    assert shows in out
    assert "sparknet.cli" in modules
    assert not modules & {"torch", "pyspark", "py4j", "numpy", "pandas", "pyarrow", "petastorm", "PIL", "fsspec"}


def test_help_is_quick() -> None:
    # The promise is half a second more than a bare Python. Time on the processor, and the best of three, so that a
    # busy machine does not decide; and a margin, so that a slow one does not.
    def spent(*words: str) -> float:
        def once() -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        return min(once() for _ in range(3))

    extra = spent("-c", "from sparknet.cli import main; main()", "--help") - spent("-c", "pass")
    assert extra < 1.5


def test_help_lists_the_commands() -> None:
    out = CliRunner().invoke(cli.app, ["--help"]).stdout
    for command in ("inspect", "train", "evaluate", "doctor"):
        assert f"\n  {command} " in out
    assert CliRunner().invoke(cli.app, ["--version"]).stdout == f"sparknet {sparknet.__version__}\n"


# ---- Mistakes that are told before Spark is started.


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must end with exit status 2 and one line on stderr; give that line."""

    @contextmanager
    def no_spark(*_: object) -> Iterator[SparkContext]:
        raise AssertionError("Spark was started")
        yield

    monkeypatch.setattr(command_module, "running_spark", no_spark)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["sparknet", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        assert end.value.code == 2
        assert captured.out == ""
        [line] = captured.err.splitlines()
        assert line.startswith("sparknet: ")
        return line.removeprefix("sparknet: ")

    return run


def test_an_unknown_network(fails: Callable[..., str], tmp_path: Path) -> None:
    assert fails("train", "x.tar", "--net", "lennet", "--out", tmp_path / "run") == (
        "no network 'lennet'; did you mean lenet? there are cifar10_quick, lenet, and module:function for one's own"
    )
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run(fails: Callable[..., str], tmp_path: Path) -> None:
    write(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    line = fails("train", "x.tar", "--net", "lenet", "--out", tmp_path)
    assert line == (
        f"{tmp_path}: holds another run already; name a new folder, or go on with that one (--resume {tmp_path})"
    )
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_file_for_a_folder(fails: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    line = fails("train", "x.tar", "--net", "lenet", "--out", tmp_path / "run")
    assert line == f"{tmp_path}/run: is a file; name a new folder for the run"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tau 0", "tau must be at least 1, got 0"),
        ("--rounds -1", "rounds must be at least 1, got -1"),
        ("--workers 0", "workers must be at least 1, got 0"),
        ("--batch 0", "batch must be at least 1, got 0"),
        ("--crop 0", "crop must be at least 1, got 0"),
        ("--test-every 0", "test-every must be at least 1, got 0"),
        ("--checkpoint-every 0", "checkpoint-every must be at least 1, got 0"),
        ("--keep-checkpoints 0", "keep-checkpoints must be at least 1, got 0"),
        ("--threads 0", "threads must be at least 1, got 0"),
        ("--seed -1", "seed must be from 0 up to 2^64, got -1"),
        ("--lr 0", "lr must be above 0 and finite, got 0.0"),
        ("--lr nan", "lr must be above 0 and finite, got nan"),
        ("--momentum 1", "momentum must be from 0 up to 1, got 1.0"),
        ("--weight-decay -1", "weight-decay must be finite and not negative, got -1.0"),
        ("--lr-policy cosine", "lr-policy must be one of fixed, step, exp, inv, multistep, poly, got cosine"),
        ("--lr-policy step", "the policy step needs a step-size of at least 1 iteration, got 0"),
        ("--lr-policy multistep", "the policy multistep needs rising step-values, got ()"),
        (
            "--lr-policy multistep --step-value 9 --step-value 3",
            "the policy multistep needs rising step-values, got (9, 3)",
        ),
        ("--momentum-mode lost", "momentum-mode must be one of kept, reset, averaged, got lost"),
        ("--device tpu", "device must be one of cpu, cuda, auto, got tpu"),
        ("--scale 0", "scale must be above 0 and finite, got 0.0"),
    ],
)
def test_options_that_cannot_be_meant(words: str, message: str, fails: Callable[..., str], tmp_path: Path) -> None:
    assert fails("train", "x.tar", "--net", "lenet", "--out", tmp_path / "run", *words.split()) == message


@pytest.mark.parametrize("words", ["", "x.tar", "x.tar --net lenet", "x.tar --out run", "--net lenet --out run"])
def test_train_needs_a_source_a_network_and_a_folder(words: str, fails: Callable[..., str]) -> None:
    assert fails("train", *words.split()) == (
        "train needs SOURCE, --net (cifar10_quick, lenet, or module:function of your own) and --out; or --resume RUN"
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--lr 1", "--lr"),
        ("--tau 10", "--tau"),  # even where it is what the run was begun with
        ("x.tar", "SOURCE"),
        ("--mean none --rounds 9 --step-value 3 --workers 1", "--mean, --step-value"),
        ("--out other", "--out"),
    ],
)
def test_a_run_is_resumed_with_its_own_settings(
    words: str, named: str, fails: Callable[..., str], tmp_path: Path
) -> None:
    write(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert fails("train", "--resume", tmp_path, *words.split()) == (
        f"--resume takes all settings from {tmp_path}; beside it, only --rounds, --workers, --cache-limit-gb, "
        f"--master, --conf and --json may be given, not {named}"
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_resuming_no_run_or_a_damaged_one(fails: Callable[..., str], tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "absent"):
        line = fails("train", "--resume", name)
        assert line == f"{name}: holds no run; name the folder that `sparknet train` was given as --out"
    assert not (tmp_path / "absent").exists()
    (tmp_path / "config.json").write_text("[]")
    assert fails("train", "--resume", tmp_path).startswith(f"{tmp_path}/config.json: damaged: TypeError: ")


def test_resuming_with_fewer_than_one_round(fails: Callable[..., str], tmp_path: Path) -> None:
    write(tmp_path)
    assert fails("train", "--resume", tmp_path, "--rounds", 0) == "rounds must be at least 1, got 0"


def test_evaluate_of_no_run_or_a_damaged_one(fails: Callable[..., str], tmp_path: Path) -> None:
    line = fails("evaluate", tmp_path, "x.tar")
    assert line == f"{tmp_path}: holds no run; name the folder that `sparknet train` was given as --out"
    (tmp_path / "config.json").write_text("{\n\n?")
    assert fails("evaluate", tmp_path, "x.tar").startswith(f"{tmp_path}/config.json: damaged: JSONDecodeError: ")


@pytest.mark.parametrize(
    "words",
    [["inspect"], ["evaluate", "run"], ["train", "x.tar", "--tau", "two"], ["fly"], ["inspect", "x.tar", "--tau", "1"]],
    ids=" ".join,
)
def test_usage_errors_are_typers(words: list[str]) -> None:
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr


def test_an_error_of_any_kind_is_one_line_with_its_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise kind("several\n   lines\tof text")

    monkeypatch.setattr(cli, "app", fail)
    for kind in SparkNetError.__subclasses__():
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == kind.exit_status
        assert capsys.readouterr().err == "sparknet: several lines of text\n"


# ---- The commands' other paths, on the tests' own Spark.


@pytest.fixture
def command(spark_of_the_tests: None) -> Callable[..., tuple[str, str]]:
    """Run a command that must succeed; give its stdout and stderr."""

    def run(*words: object) -> tuple[str, str]:
        result = CliRunner().invoke(cli.app, [str(word) for word in words], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout, result.stderr

    return run


def test_inspect_in_words_and_a_sheet(command: Callable[..., tuple[str, str]], tiny: TinySet, tmp_path: Path) -> None:
    out, err = command("inspect", tiny.train, "--sheet", tmp_path / "sheet.png")
    assert err == ""
    assert out.splitlines() == [
        "layout      ilsvrc",
        "samples     63",
        "classes     3, 20 to 22 images each",
        "size        40 x 32 to 40 x 32 pixels",
        "unlabelled  0",
        "bad         0",
        f"sheet       {tmp_path}/sheet.png",
    ]
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width == 10 * 100 + 4  # ten thumbnails in a row
        assert sheet.height == 5 * 114 + 4  # fifty in all


def test_inspect_of_a_set_without_labels_and_with(command: Callable[..., tuple[str, str]], tiny: TinySet) -> None:
    result = json.loads(command("inspect", tiny.val, "--json")[0])
    assert (result["samples"], result["classes"], result["unlabelled"], result["bad"]) == (31, 0, 31, 0)
    assert result["per_class"] == {}
    result = json.loads(command("inspect", tiny.val, "--labels", tiny.val_txt, "--json")[0])
    assert (result["samples"], result["classes"], result["unlabelled"], result["bad"]) == (31, 3, 0, 0)
    assert result["per_class"] == {"0": 11, "1": 10, "2": 10}


def test_what_is_not_given_is_published_and_workers_are_the_slots(
    command: Callable[..., tuple[str, str]], tiny: TinySet, tmp_path: Path
) -> None:
    words = f"train {tiny.train} --net lenet --batch 30 --tau 1 --rounds 1 --out {tmp_path}/run"
    out, _ = command(*words.split())
    first, second = out.splitlines()
    assert first.startswith("1 rounds and 60 images in ")
    assert second == f"run         {tmp_path}/run"
    expected = replace(published("lenet"), workers=2, batch=30, tau=1, rounds=1)
    assert checkpoint.load(tmp_path / "run").settings.config == expected


def test_every_option_reaches_the_run(command: Callable[..., tuple[str, str]], tiny: TinySet, tmp_path: Path) -> None:
    words = f"""train {tiny.train} --val {tiny.val} --val-labels {tiny.val_txt} --layout ilsvrc --net cifar10_quick
        --side 20 --crop 16 --workers 1 --tau 2 --rounds 3 --batch 4 --lr 0.002 --momentum 0.8 --weight-decay 0.003
        --lr-policy multistep --gamma 0.2 --power 2 --step-size 7 --step-value 2 --step-value 5 --max-iterations 11
        --momentum-mode averaged --mirror --mean 1,2.5,3 --scale 0.5 --seed 4 --test-every 2
        --random-resized-crop --pca-colour 0.2 --bgr --test-crops 10 --cache jpeg --checkpoint-every 2
        --keep-checkpoints 1 --threads 2 --device auto
        --out {tmp_path}/run"""
    out, err = command(*words.split())
    run = checkpoint.load(tmp_path / "run")
    assert run.settings.config == TrainConfig(
        net="cifar10_quick",
        crop=16,
        batch=4,
        workers=1,
        tau=2,
        rounds=3,
        seed=4,
        momentum_mode="averaged",
        mirror=True,
        resized_crop=True,
        pca_colour=0.2,
        mean=(1, 2.5, 3),
        bgr=True,
        test_crops=10,
        scale=0.5,
        test_every=2,
        checkpoint_every=2,
        keep_checkpoints=1,
        threads=2,
        device="auto",
        solver=SolverConfig(
            base_lr=0.002,
            momentum=0.8,
            weight_decay=0.003,
            policy="multistep",
            gamma=0.2,
            power=2,
            step_size=7,
            step_values=(2, 5),
            max_iterations=11,
        ),
    )
    assert (run.settings.side, run.settings.class_names) == (20, SYNSETS)
    assert run.mean is not None
    assert run.mean.tolist() == [1, 2.5, 3]
    assert run.settings.origin["cache"] == "jpeg"
    top1 = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["top1"]
    assert out.startswith(f"top-1 {top1:.2%}, top-5 100.00%, after 3 rounds and 24 images in ")
    assert [line.split("  ")[0] for line in err.splitlines()] == ["round 2/3", "round 3/3"]

    out, _ = command("evaluate", tmp_path / "run", tiny.val, "--labels", tiny.val_txt)
    assert out == f"top-1 {top1:.2%}, top-5 100.00% of 31 images\n"


def test_bad_samples_are_told_and_named_in_the_run_and_poly_ends_with_it(
    command: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    members = {f"a_{i}.JPEG": jpeg(i, 0) for i in range(3)} | {"a_bad.JPEG": b"no image"}
    (tmp_path / "train.tar").write_bytes(tar_bytes({"n00000001.tar": tar_bytes(members)}))
    words = f"""train {tmp_path}/train.tar --net lenet --lr-policy poly --power 1 --tau 2 --rounds 2
        --workers 1 --batch 2 --max-bad 0.25 --out {tmp_path}/run"""
    _, err = command(*words.split())
    assert "training set: 1 of 4 samples are bad; " in err
    assert "a_bad.JPEG: " in err
    [line] = (tmp_path / "run" / "bad_samples.jsonl").read_text().splitlines()
    assert json.loads(line)["key"].endswith("a_bad.JPEG")

    settings = checkpoint.load(tmp_path / "run").settings
    assert settings.config.solver.max_iterations == 4
    assert settings.side == 28  # not given: the published one
    rates = [json.loads(line)["rate"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rates == pytest.approx([0.0075, 0.0025])


# ---- CIFAR-10, where it is there.


@pytest.mark.heavy
def test_inspect_of_cifar10(cifar10: Path, tmp_path: Path) -> None:
    done = sparknet_command("inspect", cifar10 / "ILSVRC2012_img_train.tar", "--json", cwd=tmp_path, tmp=tmp_path)
    result = json_line(done)
    assert (result["samples"], result["classes"], result["bad"], result["unlabelled"]) == (50_000, 10, 0, 0)
    assert set(result["per_class"].values()) == {5000}
    assert (result["width"], result["height"]) == ([32, 32], [32, 32])


@pytest.mark.heavy
def test_train_on_cifar10_learns_and_evaluates_to_the_digit(cifar10: Path, tmp_path: Path) -> None:
    val, labels = cifar10 / "ILSVRC2012_img_val.tar", cifar10 / "val.txt"
    words = f"""train {cifar10}/ILSVRC2012_img_train.tar --val {val} --val-labels {labels} --net cifar10_quick
        --side 32 --crop 32 --workers 2 --tau 10 --rounds 20 --master local[2,4] --out run --json"""
    trained = json_line(sparknet_command(*words.split(), cwd=tmp_path, tmp=tmp_path))
    assert trained["images"] == 2 * 10 * 20 * 100
    assert trained["top1"] > 0.35
    (tmp_path / "run" / "metrics.jsonl").unlink()
    words = f"evaluate run {val} --labels {labels} --json"
    found = json_line(sparknet_command(*words.split(), cwd=tmp_path, tmp=tmp_path))
    assert found == {"top1": trained["top1"], "top5": trained["top5"], "images": 10_000}
