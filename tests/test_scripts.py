import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
BASH = shutil.which("bash") or "/bin/bash"


# ---- make_digits.py


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "not there yet"
    make_digits(folder)
    return folder


def make_digits(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_digits.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{folder}: 1352 images to train on, 445 held out, 10 classes\n"


def read_members(tar: tarfile.TarFile) -> dict[str, bytes]:
    found = {}
    for member in tar:
        assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
        file = tar.extractfile(member)
        assert file is not None
        found[member.name] = file.read()
    return found


def test_digits_are_laid_out_as_imagenet_is(digits: Path) -> None:
    assert sorted(path.name for path in digits.iterdir()) == [
        "ILSVRC2012_img_train.tar",
        "ILSVRC2012_img_val.tar",
        "val.txt",
    ]
    with tarfile.open(digits / "ILSVRC2012_img_train.tar") as train:
        inner = read_members(train)
    assert list(inner) == [f"n{digit:08d}.tar" for digit in range(10)]
    with tarfile.open(digits / "ILSVRC2012_img_val.tar") as val:
        held_out = read_members(val)
    assert list(held_out) == [f"ILSVRC2012_val_{place:08d}.JPEG" for place in range(1, 446)]

    lines = (digits / "val.txt").read_text().splitlines()
    labels = [int(line.split(" ")[1]) for line in lines]
    assert [line.split(" ")[0] for line in lines] == list(held_out)
    assert labels != sorted(labels)


def test_digits_are_all_there_once_and_a_quarter_of_each_class_is_held_out(digits: Path) -> None:
    from sklearn.datasets import load_digits

    source = load_digits()
    pixels = np.rint(source.images * (255 / 16)).astype(np.int16)
    trained: Counter[int] = Counter()
    with tarfile.open(digits / "ILSVRC2012_img_train.tar") as train:
        for name, data in read_members(train).items():
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                for member, jpeg in read_members(tar).items():
                    synset, number = member.removesuffix(".JPEG").split("_")
                    assert name == f"{synset}.tar"
                    assert source.target[int(number)] == int(synset[1:])
                    assert np.abs(decode(jpeg) - pixels[int(number)]).max() <= 3
                    trained[int(synset[1:])] += 1

    held_out: Counter[int] = Counter()
    with tarfile.open(digits / "ILSVRC2012_img_val.tar") as val:
        jpegs = read_members(val)
    for line in (digits / "val.txt").read_text().splitlines():
        name, index = line.split(" ")
        same_class = pixels[source.target == int(index)]
        assert np.abs(same_class - decode(jpegs[name])).max(axis=(1, 2)).min() <= 3
        held_out[int(index)] += 1

    for digit, count in enumerate(np.bincount(source.target)):
        assert held_out[digit] == count // 4
        assert trained[digit] == count - count // 4


def decode(jpeg: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(jpeg))
    assert (image.format, image.mode, image.size) == ("JPEG", "L", (8, 8))
    return np.asarray(image).astype(np.int16)


def test_digits_are_the_same_bytes_every_time(digits: Path, tmp_path: Path) -> None:
    make_digits(tmp_path)
    for path in digits.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


# ---- setup.sh, test.sh


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of what setup.sh works on, in a folder with a space in its name."""
    root = tmp_path / "a root"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    return root


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of the few programs that setup.sh calls, with no Python, apt-get or java among them."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "cksum", "dirname", "env", "grep", "id", "mkdir", "mktemp", "rm", "tail"):
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    return tools


def write_program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{body}\n")
    path.chmod(0o755)


def bash(command: str, root: Path, tools: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that has setup.sh's functions."""
    return subprocess.run(
        [BASH, "-c", f'source "{root}/scripts/setup.sh"\n{command}'],
        env={"PATH": str(tools), "TMPDIR": str(tools.parent), **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"], ids=str)
def test_shell_scripts_parse(script: Path) -> None:
    subprocess.run([BASH, "-n", str(script)], check=True)
    assert os.access(script, os.X_OK) == (script.name != "setup.sh")


GOOD = f'exec "{sys.executable}" "$@"'
OLD = "exit 1"
# Debian's python3 without python3-venv.
BARE = f'[[ "$*" != *ensurepip* ]] && exec "{sys.executable}" "$@"'


@pytest.mark.parametrize(
    ("pythons", "expected"),
    [
        ({"python3": GOOD, "python3.13": GOOD}, "python3"),
        ({"python3": OLD, "python3.13": GOOD, "python3.12": GOOD}, "python3.13"),
        ({"python3": BARE, "python3.12": GOOD}, "python3.12"),
        ({"python3": BARE, "python3.12": OLD}, "python3"),
        ({"python3": OLD}, None),
        ({}, None),
    ],
)
def test_find_python(pythons: dict[str, str], expected: str | None, root: Path, tools: Path) -> None:
    for name, body in pythons.items():
        write_program(tools / name, body)
    done = bash("find_python", root, tools)
    assert (done.returncode, done.stdout) == (0, f"{tools / expected if expected else ''}\n")


def test_find_python_looks_where_pyenv_keeps_them(root: Path, tools: Path, tmp_path: Path) -> None:
    python = tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3"
    write_program(python, GOOD)
    assert bash("find_python", root, tools, HOME=str(tmp_path)).stdout == f"{python}\n"


def test_find_python_takes_the_one_that_is_named_or_none(root: Path, tools: Path, tmp_path: Path) -> None:
    write_program(tools / "python3", GOOD)
    write_program(tmp_path / "my python", GOOD)
    assert bash("find_python", root, tools, PYTHON=str(tmp_path / "my python")).stdout == f"{tmp_path}/my python\n"

    write_program(tmp_path / "my python", OLD)
    done = bash("find_python", root, tools, PYTHON=str(tmp_path / "my python"))
    assert done.returncode == 1
    assert done.stderr == (
        f"sparknet: PYTHON={tmp_path}/my python is no Python 3.11 or newer: set it to one, or unset it\n"
    )


def test_no_python_is_one_line(root: Path, tools: Path) -> None:
    done = bash("make_venv", root, tools)
    assert done.returncode == 1
    assert done.stderr == "sparknet: no Python 3.11 or newer found: install one, or set PYTHON to it\n"


def test_a_step_that_fails_is_one_line_and_a_log(root: Path, tools: Path, tmp_path: Path) -> None:
    done = bash("logged 'the step' bash -c 'echo fine'; echo on", root, tools)
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")
    assert not list(tmp_path.glob("sparknet-setup-*"))

    failing = "echo begun; echo 'ERROR: no such package'; echo 'ERROR: see the manual' >&2; exit 3"
    done = bash(f'logged "the step" bash -c "{failing}"; echo on', root, tools)
    (log,) = tmp_path.glob("sparknet-setup-*")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (f"sparknet: the step failed (exit status 3): ERROR: no such package; the whole log: {log}\n")
    assert log.read_text() == "begun\nERROR: no such package\nERROR: see the manual\n"


@pytest.fixture
def environment(root: Path) -> Path:
    """An environment as make_venv leaves it, whose python writes down what it is asked for."""
    python = root / ".venv" / "bin" / "python"
    write_program(
        python,
        f'printf "<%s>" "$@" >>"{root}/asked"; echo >>"{root}/asked"\n[[ "$*" != *sparknet.java ]] || echo /a/java',
    )
    (root / ".venv" / ".made-by-setup").write_text(f"{root}\n")
    return root


def installs(root: Path) -> list[str]:
    lines = (root / "asked").read_text().splitlines() if (root / "asked").exists() else []
    return [line for line in lines if line.startswith("<-m><pip><install>")]


def test_packages_are_installed_once_and_again_where_their_list_changes(environment: Path, tools: Path) -> None:
    def set_up(what: str) -> int:
        done = bash(f"set_up {what}", environment, tools)
        assert done.returncode == 0, done.stderr
        return len(installs(environment))

    assert [set_up("quickstart"), set_up("quickstart")] == [1, 1]
    assert [set_up("dev"), set_up("dev"), set_up("quickstart")] == [2, 2, 2]
    with (environment / "constraints.txt").open("a") as file:
        file.write("six==1.17.0\n")
    assert [set_up("quickstart"), set_up("quickstart"), set_up("dev")] == [3, 3, 4]
    assert installs(environment)[0].endswith("<-c><constraints.txt><-e><.><scikit-learn>")
    assert installs(environment)[1].endswith("<-c><constraints.txt><-e><.[dev]>")


def test_set_up_exports_what_spark_needs(environment: Path, tools: Path) -> None:
    command = 'set_up dev; env | grep -E "^(JAVA|PYSPARK|SPARK_HOME|PYTHONPATH)"; command -v python'
    done = bash(command, environment, tools, SPARK_HOME="/other/spark", PYTHONPATH="/other")
    python = environment / ".venv" / "bin" / "python"
    assert sorted(done.stdout.splitlines()) == sorted(
        ["JAVA_HOME=/a/java", f"PYSPARK_PYTHON={python}", "PYSPARK_DRIVER_PYTHON=python", str(python)]
    )


def test_test_sh_hands_its_arguments_to_pytest(environment: Path, tools: Path) -> None:
    command = [BASH, str(environment / "scripts" / "test.sh"), "-k", "this or that", ""]
    subprocess.run(command, env={"PATH": str(tools)}, cwd="/", capture_output=True, check=True)
    assert (environment / "asked").read_text().splitlines()[-1] == "<-m><pytest><-k><this or that><>"


def test_an_environment_of_someone_elses_that_is_broken_is_left_alone(root: Path, tools: Path) -> None:
    (root / ".venv" / "bin").mkdir(parents=True)
    done = bash("make_venv", root, tools)
    assert done.returncode == 1
    assert done.stderr.startswith(f"sparknet: {root}/.venv is not from this script")
    assert (root / ".venv" / "bin").is_dir()


def test_constraints_pin_every_direct_dependency() -> None:
    def name(requirement: str) -> str:
        found = re.match(r"[\w.-]+", requirement)
        assert found, requirement
        return re.sub(r"[-_.]+", "-", found[0]).lower()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = {name(line) for line in project["dependencies"]}
    for extra in project["optional-dependencies"].values():
        direct |= {name(line) for line in extra}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {name(line) for line in lines if line and re.fullmatch(r"[\w.-]+==[\w.]+", line)}
    assert len(pinned) == len([line for line in lines if line])
    assert direct - pinned == set()
