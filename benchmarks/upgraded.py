"""The rows of TLS, snappy and deflate: `clients.upgraded` publishes or consumes over each."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import trustme

from benchmarks.checks import await_counts
from benchmarks.generator import CHANNEL, CONSUMED, TOPIC, Bench, MeasureError, run_load
from benchmarks.rows import Row, Run
from benchmarks.servers import Server, ServerError

# MPUBs are whole.
MULTIPLE = 200

_ROOT = Path(__file__).parent.parent


def run_upgraded(bench: Bench, row: Row, kind: str, messages: int) -> Run:
    """One run on a fresh server with a certificate.

    Raises `MeasureError` or `ServerError` when a message is missing, doubled or not finished.
    """
    messages -= messages % MULTIPLE
    with tempfile.TemporaryDirectory(dir=bench.kinds.data) as folder:
        options = [f"--mem-queue-size={row.memory_queue}", *_certificate(Path(folder))]
        with bench.kinds.start(kind, options) as server:
            try:
                return _run_on(bench, row, server, messages)
            except (MeasureError, ServerError) as error:
                text = f"{error}; the server's last lines:\n{server.last_lines()}"
                raise MeasureError(text) from error


def _certificate(folder: Path) -> list[str]:
    issued = trustme.CA().issue_cert("127.0.0.1")
    cert, key = folder / "cert.pem", folder / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    return [f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0"]


def _run_on(bench: Bench, row: Row, server: Server, messages: int) -> Run:
    where: dict[str, int | str | bool] = {"port": server.tcp_port, "topic": TOPIC}
    run_load(bench.load, "channels", {**where, "channel": CHANNEL, "channels": 1})
    if row.scenario == "consume":
        load: dict[str, int | str | bool] = {"messages": messages, "publishers": 2, "batch": 200}
        run_load(bench.load, "publish", {**where, **load})
        await_counts(server, published=messages, waiting=messages)
    cpu_s = server.cpu_s()
    run = _run_program(row, server, messages)
    return {**run, "cpu_seconds": server.cpu_s() - cpu_s}


def _run_program(row: Row, server: Server, messages: int) -> Run:
    """`clients.upgraded`; killed once the server has it all."""
    order = (f"127.0.0.1:{server.tcp_port}", TOPIC, CONSUMED, str(messages))
    command = [sys.executable, "-m", "benchmarks.clients.upgraded", *order]
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [*command, row.scenario, row.layer],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if line:
                waiting = messages if row.scenario == "publish" else 0
                await_counts(server, published=messages, waiting=waiting)
        finally:
            process.kill()
            process.communicate()
        complaints.seek(0)
        said = complaints.read()[-1500:].decode(errors="replace")
    if not line:
        raise MeasureError(f"it has not done {messages} messages: {said}")
    run: dict[str, object] = json.loads(line)
    if run["messages"] != messages:
        raise MeasureError(f"{run['messages']} messages, not {messages}")
    return run
