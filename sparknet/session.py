"""Spark's side of a run: a session, its worker slots, and what executors need to import us."""

import atexit
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

import sparknet
from sparknet.errors import ConfigError, SessionError, SparkNetError, cause_in
from sparknet.java import find_java
from sparknet.scratch import local_directories, own_folder, remove_orphans

# Without the 4, a local master does not try a failed task again.
DEFAULT_MASTER = "local[*,4]"

EXECUTORS_LIMIT_S = 90
"""How long to wait for a slot: a standalone cluster gives one in seconds, YARN in a minute where it has room."""

_DEFAULTS = {
    # The JVM must hold a round's weights from all workers; its own defaults are 1 GB and a limit of 1 GB.
    "spark.driver.memory": "4g",
    "spark.driver.maxResultSize": "0",
    "spark.ui.showConsoleProgress": "false",
}

# PySpark sets the second one itself where a session of the caller's is a Connect one.
_CONNECT_SIGNS = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}

_UNIX_PATH_LIMIT = 107 if sys.platform == "linux" else 103
"""Bytes in the name of a Unix socket: the kernel's field for it, less its closing zero."""

_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def start(
    master: str | None = None,
    app_name: str = "sparknet",
    log: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkContext:
    """Start Spark, or take the context that is there (under spark-submit, say), and try its executors.

    Whoever wants DataFrames too takes `SparkSession.builder.getOrCreate()` after it; without one Spark starts in
    two thirds of the time.

    What a Spark of our own keeps on this machine's disk lies in folders of this process within Spark's local
    directories (SPARK_LOCAL_DIRS, spark.local.dir; the system's temporary folder where neither is set). They go when
    the process ends; those that killed processes have left go at the next start.

    Args:
        master: Spark's master URL; `DEFAULT_MASTER` where None. A context that is there keeps its own.
        app_name: shown in Spark's UI.
        log: file for what the JVM and the Python workers print, Spark's log among it; they print to this process's
            standard error where None.
        conf: Spark's own settings, which go before SparkNet's.

    Raises:
        JavaError: there is no Java to run it on.
        SessionError: Spark does not start, or its executors cannot run SparkNet.
        ConfigError: it is a Spark Connect session, which has no RDDs.
    """
    master = master or DEFAULT_MASTER
    if _CONNECT_SIGNS & os.environ.keys() or master.startswith("sc://"):
        raise ConfigError(
            "Spark Connect has no RDDs; unset SPARK_REMOTE, and use a classic master (local, spark://, yarn)"
        )
    settings = SparkConf().setAppName(app_name)
    local = master.startswith("local")
    if not _is_submitted():
        os.environ["JAVA_HOME"] = str(find_java())
        if local:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings.setMaster(master)
        settings.setAll([*_DEFAULTS.items(), *((_LOOPBACK | _unix_sockets()).items() if local else ())])
    settings.setAll([*(conf or {}).items()])
    try:
        with nullcontext() if _is_submitted() else _own_jvm(conf or {}, quick=local), _stderr_to(log):
            sc = SparkContext.getOrCreate(settings)
    except (Py4JError, PySparkException, OSError, RuntimeError) as error:
        cause = _last_error(log) or cause_in(str(error)) or error
        raise SessionError(f"Spark does not start on {master}: {cause}") from error
    _try_executors(sc)
    return sc


def worker_slots(sc: SparkContext) -> int:
    """Count the tasks that can run at the same time, on the executors that are there now."""
    scala = sc._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def executor_hosts(sc: SparkContext) -> set[str]:
    """List the hosts that tasks run on, of the executors that are there now; a local master's is one."""
    hosts = {address.split(":")[0] for address in sc._jsc.sc().getExecutorMemoryStatus().keys().mkString(" ").split()}
    if not str(sc.master).startswith("local") and len(hosts) > 1:
        hosts.discard(str(sc.getConf().get("spark.driver.host")))  # the driver is listed too
    return hosts


def ship_module(sc: SparkContext, name: str) -> None:
    """Make a module of the user's own importable on the executors, where it is a file beside the driver's program.

    What is installed (Python's own, in site-packages, SparkNet) is expected to be installed there too.

    Args:
        sc: whose executors.
        name: as imported; its top-level module or package is sent.

    Raises:
        ConfigError: there is no such module.
    """
    if name.endswith(".py"):
        raise ConfigError(f"{name} is a file; name the module without .py")
    top = name.split(".")[0]
    if top in sys.stdlib_module_names or top == "sparknet":
        return
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None or not (spec.origin or spec.submodule_search_locations):
        raise ConfigError(f"no module {top!r} on the Python path; run from its folder, or set PYTHONPATH")
    if spec.submodule_search_locations is None:
        source = Path(str(spec.origin))
        if not _is_installed(source):
            sc.addPyFile(str(source))
        return
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not _is_installed(folder):
        scratch = own_folder(Path(tempfile.gettempdir()))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)  # the driver serves the file until it ends
        sc.addPyFile(shutil.make_archive(f"{scratch}/{top}", "zip", folder.parent, folder.name))


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a Spark job's failure into the error of ours that a task raised, where it was one."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raised = _raised_in_task(str(error))
        if raised is None:
            raise
        raise raised from error


def _raised_in_task(text: str) -> SparkNetError | None:
    """Find the last of our errors in a Python traceback that Spark passed on."""
    matches = re.findall(r"^sparknet\.errors\.(\w+): (.+)$", text, re.MULTILINE)
    if not matches:
        return None
    name, message = matches[-1]
    kind = getattr(sys.modules["sparknet.errors"], name, SparkNetError)
    error: SparkNetError = kind(message)
    return error


def _is_submitted() -> bool:
    """Whether a JVM is there already: a context of the caller's, or spark-submit's."""
    return SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _try_executors(sc: SparkContext) -> None:
    """Run one task that imports SparkNet.

    Raises:
        SessionError: it cannot, or finds another version.
    """
    python = os.environ.get("PYSPARK_PYTHON", "python3")
    try:
        with _no_endless_wait(sc):
            found = sc.parallelize([None], 1).map(_version).first()
    except (Py4JError, PySparkException) as error:
        if sc._jsc.sc().isStopped():  # the JVM's part ends by itself where no master answers
            raise SessionError(f"Spark gave up on {sc.master}: no master answers there") from error
        if not worker_slots(sc):
            raise SessionError(
                f"{sc.master} gave no slot for a task within {EXECUTORS_LIMIT_S} s; start workers at this master, or "
                "end what holds their cores"
            ) from error
        cause = cause_in(str(error)) or "the task failed"
        raise SessionError(
            f"executors cannot run SparkNet with {python}: {cause}; install sparknet {sparknet.__version__} there, "
            "or let PYSPARK_PYTHON name the Python that has it"
        ) from error
    if found != sparknet.__version__:
        raise SessionError(f"executors have sparknet {found}, the driver has {sparknet.__version__}; install the same")


@cache
def _unix_sockets() -> dict[str, str]:
    """Let Spark's JVM and its Python workers speak over Unix sockets, in a folder of this process's own.

    64 empty tasks on two slots take 0.7 s so, 1.8 s over TCP.
    """
    folder = own_folder(Path(tempfile.gettempdir()))
    atexit.register(_remove, [folder])
    if len(str(folder / f".{uuid.uuid4()}.sock")) > _UNIX_PATH_LIMIT:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


@contextmanager
def _own_jvm(conf: Mapping[str, str], quick: bool) -> Iterator[None]:
    """Give folders of this process's own to the JVM that is started meanwhile, for whatever it puts on disk.

    A quick one compiles its code once and lightly (C1): where it shares its cores with Python's workers, its second
    compiler takes more from them than it gives.
    """
    if SparkContext._gateway is not None:  # a JVM serves a process to its end, session after session
        yield
        return
    folders: list[Path] = []
    atexit.register(_remove, folders)
    roots = local_directories(conf)
    for root in {*roots, Path(tempfile.gettempdir())}:
        remove_orphans(root)
    for root in roots:
        folders.append(own_folder(root))
    # The variable goes before every other way to say it; the option is for the JVM's native libraries.
    option = f'"-Djava.io.tmpdir={folders[0]}"'
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    options = " ".join(filter(None, ("-XX:TieredStopAtLevel=1" if quick else "", given, option)))
    with _environment({"SPARK_LOCAL_DIRS": ",".join(map(str, folders)), "SPARK_SUBMIT_OPTS": options}):
        yield


def _remove(folders: list[Path]) -> None:
    """Stop Spark, if it still runs, and remove its folders."""
    if SparkContext._active_spark_context is not None:
        with suppress(Exception):  # its JVM may be gone
            SparkContext._active_spark_context.stop()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _no_endless_wait(sc: SparkContext) -> Iterator[None]:
    """End the jobs of a session that has no executor for too long: Spark itself would wait for ever."""
    over = threading.Event()

    def watch() -> None:
        without_s = 0
        with suppress(Exception):  # the session may end meanwhile
            while not over.wait(1):
                without_s = 0 if worker_slots(sc) else without_s + 1
                if without_s >= EXECUTORS_LIMIT_S:
                    sc.cancelAllJobs()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _version(_: None) -> str:
    return sparknet.__version__


def _last_error(log: Path | None) -> str | None:
    if log is None:
        return None
    return cause_in(log.read_text(errors="replace"))


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Give a file to the processes started meanwhile as their standard error: the JVM keeps it, and its workers."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
