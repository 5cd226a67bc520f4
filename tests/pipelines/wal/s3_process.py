"""moto's S3 server as a program that finds its objects again: ``s3_process.py PORT JOURNAL``.

moto keeps all in memory. Requests that change something are written to a journal before they are
carried out, and are carried out again at the next start, before the first client comes.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.test import Client

Environment = dict[str, Any]


class JournaledApplication:
    """The WSGI application."""

    def __init__(self, path: str) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._one_at_a_time = threading.Lock()
        if os.path.exists(path):
            self._replay(path)
        self._journal = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def _replay(self, path: str) -> None:
        client = Client(self._application)
        with open(path, encoding="utf-8") as journal:
            for line in journal:
                if not line.endswith("\n"):
                    break  # the kill came while it was written
                entry = json.loads(line)
                client.open(
                    entry["path"],
                    method=entry["method"],
                    headers=entry["headers"],
                    data=base64.b64decode(entry["body"]),
                ).close()

    def __call__(self, environment: Environment, start: Callable[..., Any]) -> Iterable[bytes]:
        method = environment["REQUEST_METHOD"]
        if method in ("GET", "HEAD"):
            return self._application(environment, start)  # type: ignore[no-any-return]
        body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        environment["wsgi.input"] = io.BytesIO(body)
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").title(): value
            for name, value in environment.items()
            if name.startswith("HTTP_") or name == "CONTENT_TYPE"
        }
        entry = {
            "method": method,
            "path": f"{environment['PATH_INFO']}?{environment.get('QUERY_STRING', '')}",
            "headers": headers,
            "body": base64.b64encode(body).decode(),
        }
        with self._one_at_a_time:
            self._journal.write(f"{json.dumps(entry)}\n")
            self._journal.flush()
            return list(self._application(environment, start))


def main() -> None:
    _, port, path = sys.argv
    run_simple("127.0.0.1", int(port), JournaledApplication(path), threaded=True)


if __name__ == "__main__":
    main()
