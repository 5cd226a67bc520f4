"""An S3 store for tests: moto's server as a process. It can be away for a time, and keeps its data.

moto has its data in memory. So `S3.down` closes its port with all connections, and `S3.up` opens
it again; the process stays.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import boto3

__all__ = ["BUCKET", "S3", "s3_server"]

BUCKET: Final = "bucket"
_KEYS: Final = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}


class S3:
    """A running server with one bucket."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    @property
    def options(self) -> dict[str, str]:
        """Options of deltalake for it."""
        times = {"retry_timeout": "2s", "max_retries": "2", "timeout": "10s"}
        where = {"aws_endpoint": self.url, "aws_region": "us-east-1", "allow_http": "true"}
        return {**_KEYS, **where, **times}

    def names(self) -> list[str]:
        """The objects of the bucket."""
        client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **_KEYS)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def down(self) -> None:
        """Close the port and all connections. Returns when that is done."""
        self._command("down")

    def up(self) -> None:
        """Open the port again. Returns when that is done."""
        self._command("up")

    def _command(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{word}\n"


@contextmanager
def s3_server() -> Iterator[S3]:
    """Start a server with an empty bucket."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pipelines.jobs.stores"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **_KEYS)
        client.create_bucket(Bucket=BUCKET)
        yield S3(process, url)
    finally:
        process.kill()
        process.communicate()


def _serve() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    for line in sys.stdin:
        if line == "down\n":
            server.stop()
        else:
            server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
            server.start()
        print(line, end="", flush=True)


if __name__ == "__main__":
    _serve()
