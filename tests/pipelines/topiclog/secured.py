"""An nsqd that is reached by TLS alone and knows users, with a log to read."""

from __future__ import annotations

import hashlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.pipelines.source.publishing import wait_until
from tests.pipelines.topiclog.reading import LOG
from tests.secured import Papers, make_papers
from trionsq.testing import OpenBroker
from trionsq.testing.broker import broker_in_thread

TOKENS: Final = {name: f"{name}-token-8c1f" for name in ("shop", "reader", "owner", "other")}
"""By user."""

_RIGHTS: Final = {
    "shop": 'publish = ["t"]',
    "reader": 'subscribe = ["t"]',
    "owner": 'admin = ["t"]',
    "other": 'subscribe = ["t/c"]',
}


class SecuredNsqd:
    """An nsqd with a file of users; ``reader`` may read the topic t, ``owner`` may all with it."""

    def __init__(self, opened: OpenBroker, papers: Papers, acl: Path) -> None:
        self.url = f"https://{opened.https_address}"
        self.papers = papers
        self._acl = acl
        self._context = ssl.create_default_context(cafile=papers.ca)
        self._context.load_cert_chain(papers.client)

    def options(self, user: str = "reader") -> dict[str, str]:
        """Those of ``client.`` with the user's token."""
        return {
            "client.tls_root_ca_file": self.papers.ca,
            "client.auth_secret": TOKENS[user],
        }

    def ask(self, user: str, path: str, body: bytes | None = None) -> bytes:
        """Ask as a user. Raises HTTPError."""
        headers = {"Authorization": f"Bearer {TOKENS.get(user, user)}"}
        request = urllib.request.Request(f"{self.url}{path}", body, headers)
        with urllib.request.urlopen(request, timeout=60, context=self._context) as answer:
            return bytes(answer.read())

    def publish(self, bodies: Sequence[bytes]) -> None:
        """When this returns they are in the log."""
        self.ask("shop", "/mpub?topic=t", b"\n".join(bodies))

    def set_users(self, *names: str) -> None:
        """Only these are known from now on; returns when nsqd has seen it."""
        self._acl.write_text(users(*names))
        wait_until(lambda: all(self._knows(name) == (name in names) for name in TOKENS))

    def _knows(self, user: str) -> bool:
        try:
            self.ask(user, "/info")
        except urllib.error.HTTPError:
            return False
        return True


def users(*names: str) -> str:
    """A file of users: these, and a client by its certificate."""
    lines = ["[users.certified]", 'certificate = "client"', _RIGHTS["reader"]]
    for name in names:
        digest = hashlib.sha256(TOKENS[name].encode()).hexdigest()
        lines += [f"[users.{name}]", f'token_sha256 = "{digest}"', _RIGHTS[name]]
    return "\n".join(lines)


@contextmanager
def secured_nsqd(folder: Path, **options: str) -> Iterator[SecuredNsqd]:
    """A running one that knows all users, and a client by its certificate."""
    papers = make_papers(folder)
    acl = folder / "acl.toml"
    acl.write_text(users(*TOKENS))
    given = papers.nsqd_options | {"acl_file": str(acl)} | LOG | options
    with broker_in_thread(**given) as opened:
        yield SecuredNsqd(opened, papers, acl)
