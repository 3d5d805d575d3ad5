import importlib
import os
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sparknet
from sparknet.errors import ConfigError, DecodeError, ShardError, SparkNetError
from sparknet.session import _unix_sockets, readable_errors, ship_module, start, worker_slots


def test_a_local_master_has_the_slots_that_it_names(sc: SparkContext) -> None:
    assert sc.master == "local[2,4]"
    assert worker_slots(sc) == 2


def test_the_session_that_is_there_is_taken(sc: SparkContext) -> None:
    assert start("local[7]", "another") is sc
    assert worker_slots(sc) == 2


def test_executors_run_this_python_and_this_sparknet(sc: SparkContext) -> None:
    def look(_: int) -> tuple[str, str]:
        return sys.executable, sparknet.__version__

    assert sc.parallelize([0], 1).map(look).collect() == [(sys.executable, sparknet.__version__)]


@pytest.mark.parametrize("sign", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", None])
def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch, sign: str | None) -> None:
    if sign:
        monkeypatch.setenv(sign, "sc://host:15002")
    with pytest.raises(ConfigError, match=r"^Spark Connect has no RDDs; unset SPARK_REMOTE, and use a classic master"):
        start("local[2,4]" if sign else "sc://host:15002")


def test_a_session_for_data_frames_is_had_on_top(sc: SparkContext) -> None:
    assert SparkSession.builder.getOrCreate().range(3).count() == 3


def test_workers_speak_over_unix_sockets_in_a_folder_of_this_process(sc: SparkContext) -> None:
    folder = Path(str(sc.getConf().get("spark.python.unix.domain.socket.dir")))
    assert str(os.getpid()) in folder.name
    assert folder.stat().st_mode & 0o777 == 0o700
    sc.parallelize([0], 1).map(abs).count()
    assert any(path.is_socket() for path in folder.iterdir())


def test_a_folder_whose_path_is_too_long_for_a_socket_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ("d" * 80)).mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("d" * 80)))
    assert _unix_sockets.__wrapped__() == {}


def on_executor(sc: SparkContext, module: str, function: str) -> list[tuple[object, str]]:
    """Import a module in a task; returns what its function gives there, and where it lies."""

    def call(_: int) -> tuple[object, str]:
        found = importlib.import_module(module)
        return getattr(found, function)(), str(found.__file__)

    return sc.parallelize([0, 1], 2).map(call).collect()


def test_a_module_beside_the_program_is_shipped(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shipped_alone.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ship_module(sc, "shipped_alone")
    for answer, file in on_executor(sc, "shipped_alone", "answer"):
        assert answer == 42
        assert not file.startswith(str(tmp_path))
        assert file.startswith(SparkFiles.getRootDirectory())


def test_a_package_is_shipped_whole_whichever_part_is_named(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shipped_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("")
    (package / "base.py").write_text("BASE = 40\n")
    (package / "inner" / "nets.py").write_text(
        "from shipped_package.base import BASE\n\n\ndef answer():\n    return BASE + 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ship_module(sc, "shipped_package.inner.nets")
    for answer, file in on_executor(sc, "shipped_package.inner.nets", "answer"):
        assert answer == 42
        assert file.endswith("shipped_package.zip/shipped_package/inner/nets.py")
    with zipfile.ZipFile(SparkFiles.get("shipped_package.zip")) as archive:
        assert {name for name in archive.namelist() if name.endswith(".py")} == {
            "shipped_package/__init__.py",
            "shipped_package/base.py",
            "shipped_package/inner/__init__.py",
            "shipped_package/inner/nets.py",
        }


def test_a_folder_without_init_is_a_package_too(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shipped_namespace").mkdir()
    (tmp_path / "shipped_namespace" / "net.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ship_module(sc, "shipped_namespace.net")
    assert [answer for answer, _ in on_executor(sc, "shipped_namespace.net", "answer")] == [42, 42]


@pytest.mark.parametrize("name", ["json", "sys", "numpy", "numpy.linalg", "sparknet.train.models.lenet", "__future__"])
def test_what_is_installed_is_not_shipped(sc: SparkContext, name: str) -> None:
    before = [*sc._python_includes]  # type: ignore[misc]
    ship_module(sc, name)
    assert sc._python_includes == before


@pytest.mark.parametrize("name", ["no_such_module", "no_such_module.net", "", ".net", "a-b"])
def test_a_module_that_is_not_there_is_named(sc: SparkContext, name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ship_module(sc, name)
    top = name.split(".")[0]
    assert str(raised.value) == f"no module {top!r} on the Python path; run from its folder, or set PYTHONPATH"


def fail_with(error: Exception, cause: Exception | None = None) -> list[int]:
    def fail(_: Iterable[int]) -> Iterable[int]:
        raise error from cause

    context = SparkContext.getOrCreate()
    with readable_errors():
        return context.parallelize([0], 1).mapPartitions(fail).collect()


def test_an_error_of_ours_in_a_task_is_that_error_here(sc: SparkContext) -> None:
    with pytest.raises(ShardError) as raised:
        fail_with(ShardError("s3://b/x.tar: cut off at offset 7: 'a' and \"b\""))
    assert str(raised.value) == "s3://b/x.tar: cut off at offset 7: 'a' and \"b\""
    assert type(raised.value) is ShardError
    assert isinstance(raised.value.__cause__, (Py4JError, PySparkException))


def test_the_error_that_ended_the_task_counts_not_its_cause(sc: SparkContext) -> None:
    with pytest.raises(ShardError, match=r"^the whole$"):
        fail_with(ShardError("the whole"), DecodeError("the part"))
    with pytest.raises(SparkNetError, match=r"^the root$"):
        fail_with(SparkNetError("the root"), KeyError("x"))


def test_another_error_stays_what_it_is(sc: SparkContext) -> None:
    with pytest.raises((Py4JError, PySparkException), match="ZeroDivisionError: by nothing"):
        fail_with(ZeroDivisionError("by nothing"))
    with pytest.raises(KeyError), readable_errors():
        raise KeyError("of the driver")


def test_a_result_passes(sc: SparkContext) -> None:
    with readable_errors():
        assert sc.parallelize(range(5), 2).sum() == 10


def test_a_failed_task_is_tried_again(sc: SparkContext, tmp_path: Path) -> None:
    def fail_twice(_: int) -> int:
        tries = len(os.listdir(tmp_path))  # noqa: PTH208
        (tmp_path / str(tries)).touch()
        if tries < 2:
            raise OSError("lost")
        return tries

    assert sc.parallelize([0], 1).map(fail_twice).collect() == [2]
