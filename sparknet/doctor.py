"""What `sparknet doctor` looks at. In: a master and Spark's settings. Out: a result for each check, as it is made.

Nothing heavy is imported at the top, and whatever a check meets becomes its result: where one thing is missing or
broken, the others are looked at all the same.
"""

import importlib
import importlib.metadata
import io
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparknet import probe
from sparknet.errors import ConfigError, JavaError, StoppedError
from sparknet.java import find_java, java_version
from sparknet.probe import Answers, described

if TYPE_CHECKING:
    from rich.console import Console

_NO_ANSWERS = Answers(master="", slots=0)
MARKS = {"ok": "ok", "failed": "FAIL", "absent": "no", "not tried": "--"}

# Room for 5,461 images of 256 x 256, fewer than any set worth a cluster; and Spark's shuffles go to the same disk.
_LEAST_FREE_BYTES = 2**30
_IMAGE_BYTES = 256 * 256 * 3


class Result(NamedTuple):
    """What a check came to.

    Attributes:
        name: of what was looked at.
        status: "ok"; "failed", training cannot run; "absent", it runs without; "not tried", for want of another thing.
        found: what is there, or what is wrong.
        remedy: what to do; empty where nothing is.
    """

    name: str
    status: str
    found: str
    remedy: str = ""

    def line(self, width: int = 10_000) -> str:
        """Show it on one line, or folded to the width in characters, indented from the second line on."""
        head = f"{MARKS[self.status]:4} {self.name:12} "
        text = f"{self.found.rstrip('.')}; {self.remedy}" if self.remedy else self.found
        lines = textwrap.wrap(text, max(width - len(head), 20), break_long_words=False, break_on_hyphens=False)
        return head + ("\n" + " " * len(head)).join(lines)


class _FaultError(Exception):
    """What is not as it should be, and what to do where that is not the check's remedy."""


class _NotTriedError(Exception):
    """Why there was nothing to try."""


@dataclass(kw_only=True)
class _Setup:
    """What was asked for, and what Spark answered where it started."""

    master: str | None
    conf: Sequence[str]
    screen: "Console"
    answers: Answers = _NO_ANSWERS


class Check(NamedTuple):
    """A row of the table.

    Attributes:
        name: as it is shown.
        look: gives what is there, or raises.
        remedy: what to do then.
        needs: checks that must have gone well before.
        optional: training runs without it.
    """

    name: str
    look: Callable[[_Setup], str]
    remedy: str = ""
    needs: tuple[str, ...] = ()
    optional: bool = False


def examine(master: str | None, conf: Sequence[str], screen: "Console", trace: bool = False) -> Iterator[Result]:
    """Make every check of the table.

    Args:
        master: Spark's master URL; the default one where None.
        conf: Spark's settings, `KEY=VALUE` each.
        screen: for what is to be said meanwhile.
        trace: print the stack traces of what the checks meet.

    Raises:
        StoppedError: Ctrl-C was pressed while Spark ran.
    """
    setup = _Setup(master=master, conf=conf, screen=screen)
    good: set[str] = set()
    for check in CHECKS:
        missing = [name for name in check.needs if name not in good]
        if missing:
            yield Result(check.name, "not tried", f"not tried: needs {' and '.join(missing)}")
            continue
        result = _result(check, setup, trace)
        if result.status == "ok":
            good.add(check.name)
        yield result


def _result(check: Check, setup: _Setup, trace: bool) -> Result:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what does harm is found by looking
            return Result(check.name, "ok", check.look(setup))
    except (KeyboardInterrupt, StoppedError):
        raise
    except _NotTriedError as error:
        return Result(check.name, "not tried", f"not tried: {error}")
    except BaseException as error:  # noqa: BLE001 - a broken package may raise anything, also what is no Exception
        if trace:
            traceback.print_exception(error)
        found, remedy = "; ".join((described(error), *getattr(error, "__notes__", ()))), ""
        if isinstance(error, _FaultError):
            found, remedy = (*error.args, "")[:2]
        elif isinstance(error, ConfigError):
            found, _, remedy = found.partition("; ")
        return Result(check.name, "absent" if check.optional else "failed", found, remedy or check.remedy)


def _python(_: _Setup) -> str:
    if sys.version_info < (3, 11):  # noqa: UP036 - pip refuses an older one, a checkout on the path does not
        raise _FaultError(sys.version)
    return f"{sys.version.split()[0]} ({sys.executable})"


def _version(module: str, lowest: str = "0", below: str = "") -> str:
    """Import a module and give its version.

    Raises:
        _FaultError: it is not within the two.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise _FaultError("not installed") from error
        raise
    version = str(getattr(found, "__version__", "") or importlib.metadata.version(module))
    if _numbers(version) < _numbers(lowest) or (below and _numbers(version) >= _numbers(below)):
        raise _FaultError(f"{version} is {'too new' if _numbers(version) >= _numbers(lowest) else 'too old'}")
    return version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])) or (0,)


def _torch(_: _Setup) -> str:
    version = _version("torch", "2.6", "3")
    torch = importlib.import_module("torch")
    devices = ["cpu", *(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))]
    return f"{version}, {torch.get_num_threads()} threads; devices: {', '.join(devices)}"


def _simplejpeg(_: _Setup) -> str:
    version = _version("simplejpeg", "1.8")
    library = Path(str(importlib.import_module("simplejpeg._jpeg").__file__)).read_bytes()
    within = re.search(rb"libjpeg-turbo version ([\d.]+)", library)  # no function of it tells
    return f"{version}, libjpeg-turbo {within[1].decode() if within else 'of unknown version'}"


def _pillow(_: _Setup) -> str:
    version = _version("PIL", "10.4")
    importlib.import_module("PIL.Image")
    features = importlib.import_module("PIL.features")
    lacking = [name for name, codec in (("JPEG", "jpg"), ("PNG", "zlib")) if not features.check(codec)]
    if lacking:
        raise _FaultError(f"{version}, built without {' and '.join(lacking)}")
    turbo = features.version("libjpeg_turbo")
    return f"{version}, {f'libjpeg-turbo {turbo}' if turbo else 'a libjpeg that is not turbo'}"


def _decoding(_: _Setup) -> str:
    import numpy as np
    import simplejpeg
    from PIL import Image

    from sparknet.loaders.decode import decode

    ramp = np.arange(0, 256, 8, dtype=np.uint8)
    pixels = np.stack(np.broadcast_arrays(ramp[:, None], ramp, ramp[::-1]), axis=2)
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    if not np.array_equal(decode(png.getvalue()), pixels):
        raise _FaultError("a PNG comes out with other pixels")
    jpeg = simplejpeg.encode_jpeg(pixels, quality=100, colorsubsampling="444")
    if np.abs(decode(jpeg).astype(int) - pixels).max() > 8:
        raise _FaultError("a JPEG comes out with other pixels")
    return "a JPEG and a PNG give the pixels that they should"


def _petastorm(_: _Setup) -> str:
    from sparknet.loaders.petastorm_compat import PETASTORM_VERSION, install

    install()
    importlib.import_module("petastorm.unischema")
    return f"{PETASTORM_VERSION}, with sparknet.loaders.petastorm_compat"


def _java(_: _Setup) -> str:
    try:
        home = find_java()
    except JavaError as error:
        raise _FaultError("none that Spark can run on", str(error)) from error
    try:
        told = re.search(r'^JAVA_VERSION="(.+)"', (home / "release").read_text(errors="replace"), re.M)
    except OSError:  # the wrapper of a Java has none
        told = None
    return f"{told[1] if told else java_version(home)} ({home})"


def _spark(setup: _Setup) -> str:
    setup.answers = probe.ask_spark(setup.master, setup.conf, setup.screen)
    return f"starts on {setup.answers.master}"


def _slots(setup: _Setup) -> str:
    if not setup.answers.slots:
        raise _FaultError(setup.answers.fault.partition("; ")[0])
    return f"{setup.answers.slots}, for as many workers"


def _executors(setup: _Setup) -> str:
    if setup.answers.fault:
        found, _, remedy = setup.answers.fault.rpartition("; ")
        raise _FaultError(f"{found} ({setup.answers.log})", remedy)
    executors = setup.answers.executors
    for executor in executors:
        if executor.fault:
            raise _FaultError(f"{executor.python} on {executor.space.host} {executor.fault}")
    pythons = sorted({f"{executor.python} with torch {executor.torch}" for executor in executors})
    hosts = len({executor.space.host for executor in executors})
    return f"{', '.join(pythons)}, on {hosts} {'host' if hosts == 1 else 'hosts'}"


def _cache(setup: _Setup) -> str:
    if setup.answers.executors:
        spaces = [executor.space for executor in setup.answers.executors]
    elif setup.master is None or setup.master.startswith("local"):
        spaces = [probe.local_space(setup.conf)]
    else:
        raise _NotTriedError("needs executors")
    least = min(spaces, key=lambda space: (not space.fault, space.free_bytes))
    if least.fault:
        raise _FaultError(f"{least.folder} on {least.host} cannot be written to: {least.fault}")
    folder = re.sub(
        r"/((blockmgr|spark)-[-0-9a-f]{36}|sparknet-[0-9a-f]{8}-).*", "", least.folder
    )  # the session's own, gone by now
    room = f"{least.free_bytes / 2**30:,.1f} GiB free in {folder}"
    if least.free_bytes < _LEAST_FREE_BYTES:
        raise _FaultError(f"only {room} on {least.host}")
    return f"{room}: {least.free_bytes // _IMAGE_BYTES:,} images of 256 x 256"


def _package(module: str, lowest: str = "0", below: str = "") -> Callable[[_Setup], str]:
    return lambda _: _version(module, lowest, below)


CHECKS = (
    Check("Python", _python, "use 3.11 or newer"),
    Check("numpy", _package("numpy", "2.1"), "pip install 'numpy>=2.1'"),
    Check("torch", _torch, "pip install 'torch>=2.6,<3'"),
    Check("simplejpeg", _simplejpeg, "pip install 'simplejpeg>=1.8'", needs=("numpy",)),
    Check("Pillow", _pillow, "pip install 'pillow>=10.4'"),
    Check("decoding", _decoding, "pip install --force-reinstall simplejpeg pillow", needs=("simplejpeg", "Pillow")),
    Check("fsspec", _package("fsspec", "2024.6"), "pip install 'fsspec[http]>=2024.6'"),
    Check("braceexpand", _package("braceexpand", "0.1.7"), "pip install 'braceexpand>=0.1.7'"),
    Check("safetensors", _package("safetensors", "0.4.5"), "pip install 'safetensors>=0.4.5'"),
    Check("pandas", _package("pandas", "2.2", "3"), "for petastorm: pip install 'pandas>=2.2,<3'", optional=True),
    Check("pyarrow", _package("pyarrow", "18"), "for petastorm: pip install 'pyarrow>=18'", optional=True),
    Check("petastorm", _petastorm, "pip install petastorm==0.12.1", needs=("pandas", "pyarrow"), optional=True),
    Check("S3 client", _package("s3fs"), "for s3://: pip install 'sparknet[s3]'", optional=True),
    Check("HDFS client", _package("hdfs_native"), "for hdfs://: pip install 'sparknet[hdfs]'", optional=True),
    Check("WebHDFS", _package("requests"), "for webhdfs://: pip install 'sparknet[hdfs]'", optional=True),
    Check("HTTP client", _package("aiohttp"), "for http://: pip install 'fsspec[http]'", optional=True),
    Check("pyspark", _package("pyspark", "4.0", "5"), "pip install 'pyspark>=4.0,<5'"),
    Check("Java", _java),
    Check("Spark", _spark, "see --master and --conf, and Spark's log", needs=("Java", "pyspark")),
    Check("slots", _slots, "start workers at this master, or end what holds their cores", needs=("Spark",)),
    Check("executors", _executors, "install it, or let PYSPARK_PYTHON name a Python that has it", needs=("slots",)),
    Check("cache", _cache, "let --conf spark.local.dir=FOLDER, or SPARK_LOCAL_DIRS, name another folder"),
)
