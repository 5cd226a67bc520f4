#!/bin/sh
# Runs the suites of the parts that are pure Python on each Python from 3.11 on that is found: in
# PATH, of pyenv, or named by PYTHONS="python3.12 /opt/python3.13/bin/python3". Run by make.
# Arguments are pytest's. Each Python gets an environment of its own, build/pythons/3.X.
set -eu
cd "$(dirname "$0")/.."
SUITES="tests/wire tests/core tests/storage tests/broker tests/client tests/lookupd"

version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))' \
        2>/dev/null
}

candidates() {
    if [ -n "${PYTHONS:-}" ]; then
        printf '%s\n' $PYTHONS
        return
    fi
    for minor in 11 12 13 14 15 16; do
        command -v "python3.$minor" || true
        ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python 2>/dev/null || true
    done
}

failed="" passed="" seen=" "
for python in $(candidates); do
    # A shim of pyenv may stand for a Python that is not chosen.
    version=$(version_of "$python") || continue
    case $seen in *" $version "*) continue ;; esac
    seen="$seen$version "
    venv=build/pythons/$version
    echo "== Python $version ($python)"
    if ! cmp -s requirements-dev.txt "$venv/.installed"; then
        "$python" -m venv --clear "$venv"
        # What the suites need of requirements-dev.txt; Spark, Chromium and foreign clients they do not.
        "$venv/bin/python" -m pip --quiet --disable-pip-version-check install \
            --constraint requirements-dev.txt hatchling editables pytest pytest-trio pytest-xdist \
            hypothesis trustme \
            pydantic taskiq opentelemetry-sdk fastapi django uvloop gunicorn
        "$venv/bin/python" -m pip --quiet --disable-pip-version-check install \
            --constraint requirements-dev.txt --no-build-isolation --editable '.[server]'
        cp requirements-dev.txt "$venv/.installed"
    fi
    # shellcheck disable=SC2086
    if "$venv/bin/python" -m pytest --quiet -p no:cacheprovider --numprocesses="${WORKERS:-2}" \
        $SUITES "$@"; then
        passed="$passed $version"
    else
        failed="$failed $version"
    fi
done
[ "$seen" != " " ] || { echo "no Python from 3.11 on found" >&2; exit 1; }
echo "passed:${passed:- none}; failed:${failed:- none}"
[ -z "$failed" ]
