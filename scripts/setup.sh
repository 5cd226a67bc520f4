#!/bin/sh
# Makes .venv with the pinned dependencies and this project, editable. Run by make.
#
#   scripts/setup.sh            the environment
#   scripts/setup.sh compiler   a C compiler, which the benchmarks and their tests need
#   scripts/setup.sh headers    the headers of Python, for what is compiled: docs/compiled.md
#   scripts/setup.sh browser    Chromium, for the tests of the dashboard; without it they are skipped
#   scripts/setup.sh network    iproute2, for the tests of deploy/; without it they are skipped
#
# What the machine lacks is installed by apt when we are root or sudo asks no password;
# else one line says what to do. PYTHON names the interpreter (default: python3.11, python3).
set -eu
cd "$(dirname "$0")/.."

die() {
    echo "setup: $*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

# apt_install PACKAGE WHY
apt_install() {
    advice="$2: run 'apt-get install $1' as root, then make again"
    command -v apt-get >/dev/null 2>&1 || die "$2: install it with your system's packages"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "$advice"
        sudo -n true 2>/dev/null || die "$advice"
    fi
    echo "setup: installing $1 ($2)"
    as_root apt-get update -qq || die "$advice"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null ||
        die "$advice"
}

find_python() {
    for candidate in ${PYTHON:-python3.11 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "needs Python 3.11 or newer: install python3.11, or name one by PYTHON=..."
}

make_venv() {
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        apt_install "python$version-venv" "$python lacks the venv module"
    fi
    echo "setup: making .venv with $python"
    "$python" -m venv --clear .venv
}

case "${1:-}" in
compiler)
    command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 ||
        apt_install gcc "no C compiler"
    # A bare gcc has no C library to build against.
    echo '#include <stdio.h>' | "$(command -v cc || command -v gcc)" -E - >/dev/null 2>&1 ||
        apt_install libc6-dev "no C headers"
    ;;
headers)
    header=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
    if [ ! -e "$header" ]; then
        version=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        apt_install "python$version-dev" "no Python.h"
    fi
    ;;
network)
    command -v ip >/dev/null 2>&1 ||
        # In a subshell, for the other tests do without.
        (apt_install iproute2 "no ip command, so tests/deploy is skipped in part") || true
    ;;
browser)
    [ -n "${TRIONSQ_TEST_CHROMIUM:-}" ] ||
        command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 ||
        command -v google-chrome >/dev/null 2>&1 ||
        command -v google-chrome-stable >/dev/null 2>&1 ||
        # In a subshell, for the other tests do without.
        (apt_install chromium "no Chromium, so tests/browser is skipped") || true
    ;;
"")
    # A set-up that was interrupted leaves an environment without a working pip.
    .venv/bin/python -m pip --version >/dev/null 2>&1 || make_venv
    echo "setup: installing the pinned dependencies"
    # Twice quiet: errors, but not what pip says about the builds of others' packages.
    pip=".venv/bin/python -m pip --quiet --quiet --disable-pip-version-check"
    $pip install --requirement requirements-dev.txt
    $pip install --no-deps --no-build-isolation --editable .
    touch .venv/.installed
    ;;
*)
    die "usage: scripts/setup.sh [compiler | headers | browser | network]"
    ;;
esac
