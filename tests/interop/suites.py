"""Runs the test suite of a client in another language, unmodified, against our daemons.

``python -m tests.interop.suites go-nsq|nsqjs FOLDER``. The suites use nsqd's own ports, so this is
started in a network namespace where the machine has them (`tests.interop.test_other_languages`).
The last line has the figures, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import trio

from tests.processes import running_nsqd, running_nsqlookupd

__all__ = ["LIMIT_S", "SUITES", "Figures"]

LIMIT_S: Final = 600
Figures = dict[str, list[str]]
"""The names of tests: ``passed``, ``failed``, ``skipped``."""


async def go_nsq(folder: Path, scratch: Path) -> Figures:
    """``go test`` with the daemons that go-nsq's test.sh would start."""
    certificates = folder / "test"
    async with (
        running_nsqlookupd(
            ["--tcp-address=127.0.0.1:4160", "--http-address=127.0.0.1:4161"]
        ) as _lookupd,
        running_nsqd(
            scratch,
            [
                "--tcp-address=127.0.0.1:4150",
                "--http-address=127.0.0.1:4151",
                "--lookupd-tcp-address=127.0.0.1:4160",
                f"--tls-cert={certificates / 'server.pem'}",
                f"--tls-key={certificates / 'server.key'}",
                f"--tls-root-ca-file={certificates / 'ca.pem'}",
            ],
        ),
    ):
        said = await _run(["go", "test", "-v", "-count=1"], folder, os.environ)
    found = re.findall(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", said, re.MULTILINE)
    if not found:
        raise SystemExit(said)
    words = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
    return {words[how]: [name for kind, name in found if kind == how] for how in words}


async def nsqjs(folder: Path, scratch: Path) -> Figures:
    """``mocha``; the suite starts ``nsqd`` and ``nsqlookupd`` of PATH itself, again and again.

    It has more time than mocha gives, for our daemons start in a second, and unit tests of its
    timers are repeated: they measure milliseconds.
    """
    report = scratch / "report.json"
    options = [
        "--timeout=60000",
        "--retries=3",
        "--reporter=json",
        f"--reporter-option=output={report}",
    ]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    said = await _run(
        ["npx", "--no-install", "mocha", *options], folder, os.environ | {"PATH": path}
    )
    if not report.exists():
        raise SystemExit(said)
    told = json.loads(report.read_text())
    kinds = {"passed": "passes", "failed": "failures", "skipped": "pending"}
    return {how: [test["fullTitle"] for test in told[kind]] for how, kind in kinds.items()}


SUITES: Final = {"go-nsq": go_nsq, "nsqjs": nsqjs}


async def _run(
    command: list[str], folder: Path, environment: os._Environ[str] | dict[str, str]
) -> str:
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            command,
            cwd=folder,
            env=dict(environment),
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.stdout.decode(errors="replace")


def main() -> int:
    """Run one suite; 0 whatever it says."""
    name, folder = sys.argv[1:]
    if os.environ.get("TRIONSQ_OWN_NETWORK"):
        ip = shutil.which("ip") or "/sbin/ip"
        subprocess.run([ip, "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="suite-") as scratch:
        figures = trio.run(SUITES[name], Path(folder).resolve(), Path(scratch))
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
