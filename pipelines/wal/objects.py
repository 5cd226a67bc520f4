"""Objects in a store below a URL: requests through obstore, repeated while the store is away.

obstore is imported when a URL is used: logs in folders need none.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from pipelines.errors import SetupError, WalError

__all__ = ["SCHEMES", "Objects", "is_store_url", "open_store", "reason_of"]

log = logging.getLogger("pipelines.wal")

T = TypeVar("T")

SCHEMES: Final = ("s3", "gs", "az")
"""Of the URLs that can name a log."""

_PATIENCE_S: Final = 120.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_REQUEST_S: Final = 30


def is_store_url(path: str | os.PathLike[str]) -> bool:
    """Whether a log's path is the URL of an object store."""
    scheme, separator, _ = str(path).partition("://")
    return bool(separator) and scheme in SCHEMES


@lru_cache(maxsize=64)
def open_store(url: str) -> Any:
    """Return obstore's store for a URL; paths in it are relative to the URL. No request is made.

    Raises:
        SetupError: obstore is not installed.
        WalError: the URL or the environment is invalid.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise SetupError(
            f"{url} needs the package obstore: pip install 'trionsq[spark,stores]'"
        ) from error
    try:
        return from_url(
            url,
            client_options={
                "timeout": f"{_REQUEST_S}s",
                "connect_timeout": "5s",
                "allow_http": _may_use_http(),
            },
            # `Objects` repeats requests itself, and knows what became of a PUT.
            retry_config={"max_retries": 0},
        )
    except (BaseError, ValueError) as error:
        raise WalError(f"{url}: {reason_of(error)}") from error


def _may_use_http() -> bool:
    """Whether the environment names an address without TLS, for a store in the own network."""
    return any(
        value.startswith("http://") if "_ENDPOINT" in name else value.lower() == "true"
        for name, value in os.environ.items()
        if name.startswith(("AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")) or name == "AWS_ALLOW_HTTP"
    )


class Objects:
    """Requests to the objects below a URL, repeated while the store can't be reached."""

    def __init__(
        self,
        url: str,
        store: Any = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.rstrip("/")
        self._store = open_store(self.url) if store is None else store
        self._sleep = sleep
        self._clock = clock

    def _patiently(self, request: Callable[[], T]) -> T:
        """Repeat a request that may be repeated, with growing pauses, until the store answers.

        Raises:
            FileNotFoundError: there is no such object, or bucket.
            WalError: the store refused, or could not be reached.
            obstore's AlreadyExistsError.
        """
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            GenericError,
            JoinError,
            NotSupportedError,
        )

        began_s, pause_s = self._clock(), _FIRST_PAUSE_S
        while True:
            try:
                return request()
            except AlreadyExistsError:
                raise
            except (GenericError, JoinError, TimeoutError) as error:
                reason = reason_of(error)
                if self._clock() - began_s >= _PATIENCE_S:
                    raise WalError(
                        f"{self.url} did not answer for {_PATIENCE_S:.0f} s: {reason}"
                    ) from error
                if pause_s == _FIRST_PAUSE_S:
                    log.warning("%s: trying again for %.0f s: %s", self.url, _PATIENCE_S, reason)
            except NotSupportedError as error:
                raise self._has_no_conditions(reason_of(error)) from error
            except BaseError as error:
                raise WalError(f"{self.url}: {reason_of(error)}") from error
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def read(self, key: str) -> bytes:
        """The content of an object. Raises FileNotFoundError, WalError."""
        return self._patiently(lambda: bytes(self._store.get(key).bytes()))

    def read_head(self, key: str, nbytes: int) -> bytes:
        """The first bytes of an object. Raises FileNotFoundError, WalError."""
        return self._patiently(lambda: bytes(self._store.get_range(key, start=0, length=nbytes)))

    def exists(self, key: str) -> bool:
        """Whether there is such an object. Raises WalError."""
        try:
            self._patiently(lambda: self._store.head(key))
        except FileNotFoundError:
            return False
        return True

    def create(self, key: str, data: bytes) -> bool:
        """Create an object; False if there is another one of this name already.

        An answer that got lost does not matter: what is there is compared with ``data``.

        Raises:
            FileNotFoundError: there is no bucket.
            WalError: what became of the PUT is not known, or the store refused it.
        """
        from obstore.exceptions import AlreadyExistsError

        def request() -> bool:
            try:
                self._store.put(key, data, mode="create")
            except AlreadyExistsError:
                try:
                    return bytes(self._store.get(key).bytes()) == data
                except FileNotFoundError as error:
                    raise TimeoutError(f"{key} is being written by another process") from error
            return True

        return self._patiently(request)

    def check_conditions(self, key: str, data: bytes) -> None:
        """Try to create an object that is there, with the content that it has.

        Raises WalError: the store did not refuse, so it has no conditional writes.
        """
        from obstore.exceptions import AlreadyExistsError

        try:
            self._patiently(lambda: self._store.put(key, data, mode="create"))
        except AlreadyExistsError:
            return
        raise self._has_no_conditions("it ignores If-None-Match")

    def _has_no_conditions(self, reason: str) -> WalError:
        return WalError(
            f"{self.url}: this store has no conditional writes ({reason}), so two writers could "
            "replace each other's segments: use another store, or a folder"
        )

    def replace(self, key: str, data: bytes) -> None:
        """Create or replace an object. Raises WalError."""
        try:
            self._patiently(lambda: self._store.put(key, data))
        except FileNotFoundError as error:
            raise WalError(f"{self.url}: {reason_of(error)}") from error

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects. Missing ones are no error. Raises WalError."""
        try:
            self._patiently(lambda: self._store.delete(list(keys)))
        except FileNotFoundError:
            # Some stores stop at a missing one.
            for key in keys:
                with suppress(FileNotFoundError):
                    self._patiently(partial(self._store.delete, [key]))

    def list_keys(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        """Keys and sizes below a folder, sorted. Raises WalError."""

        def request() -> list[tuple[str, int]]:
            options = {"offset": after} if after else {}
            chunks = self._store.list(f"{folder}/", **options)
            return sorted((item["path"], item["size"]) for chunk in chunks for item in chunk)

        try:
            return self._patiently(request)
        except FileNotFoundError as error:
            raise WalError(f"{self.url}: {reason_of(error)}") from error

    def list_children(self) -> list[str]:
        """The names of the folders directly below the URL. Raises WalError."""
        try:
            found = self._patiently(self._store.list_with_delimiter)
        except FileNotFoundError as error:
            raise WalError(f"{self.url}: {reason_of(error)}") from error
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"])


def reason_of(error: BaseException) -> str:
    """The first line of obstore's text, without the query of a URL, which may have a secret."""
    line = str(error).partition("\n")[0]
    return re.sub(r"\?[^\s)]*", "?...", line)[:400]
