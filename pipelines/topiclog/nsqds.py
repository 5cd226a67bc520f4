"""Requests to the nsqds whose logs are read, and the logs that there are.

See docs/replay.md for ``GET /topic/log``. A request with ``to=0`` reads no message: it answers with
the sequence and the token of a place alone.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import trio

from pipelines.discovery import find_topic_nodes
from pipelines.errors import DataLossError, NsqdAwayError, TopicLogError
from pipelines.topiclog.options import TopicLogOptions
from pipelines.topiclog.places import LogName, Place
from trionsq import httpget
from trionsq.httpmessage import may_pass
from trionsq.wire.names import is_valid_name

__all__ = ["ACCESS_ADVICE", "LogSize", "Nsqds"]

T = TypeVar("T")

log = logging.getLogger("pipelines.topiclog")

_REQUEST_S: Final = 10.0
_MAX_REQUESTS: Final = 16
_RETRY_S: Final = 0.5
# After nsqlookupds that have answered before did not.
_LOOK_AGAIN_S: Final = 5.0
_ACCESS_STATUSES: Final = (401, 403)
ACCESS_ADVICE: Final = (
    "client.auth_secret has to be a token of a user of nsqd's --acl-file who may subscribe to the "
    "topic; with channel the user needs admin of the topic as well"
)


class LogSize(NamedTuple):
    """How much a log has: messages (at most so many) and bytes."""

    messages: int
    nbytes: int

    @property
    def message_bytes(self) -> float:
        """The mean size of a message; 0 if there is none."""
        return self.nbytes / self.messages if self.messages else 0.0


class Nsqds:
    """The nsqds that have the wanted topics.

    Attributes:
        away: the reason for each log whose nsqd did not answer to the last `ask_all`.
    """

    def __init__(self, options: TopicLogOptions) -> None:
        self.away: dict[LogName, str] = {}
        self._options = options
        self._config = options.client
        self._found: set[LogName] = set()
        self._look_at_s = 0.0

    def __repr__(self) -> str:
        return f"<Nsqds logs={len(self._found)} away={len(self.away)}>"

    async def find_logs(self) -> list[LogName]:
        """The logs to be read, of nsqlookupds as at the last poll, which is due now and then.

        Raises:
            NsqdAwayError: no nsqlookupd answers, and none has before.
        """
        options = self._options
        known = {LogName(topic, nsqd) for topic in options.topics for nsqd in options.nsqds}
        if options.lookupd_http_addresses and time.monotonic() >= self._look_at_s:
            lookupds = options.lookupd_http_addresses
            nodes, failures = await find_topic_nodes(lookupds, self._config)
            for failure in failures:
                log.warning("%s", failure)
            if len(failures) < len(lookupds):
                self._found = {LogName(*node) for node in nodes if self._is_wanted(node[0])}
                self._look_at_s = time.monotonic() + self._config.lookupd_poll_interval_s
            elif self._look_at_s:
                self._look_at_s = time.monotonic() + _LOOK_AGAIN_S
            else:
                raise NsqdAwayError(f"no nsqlookupd answers: {'; '.join(failures)}")
        return sorted(known | self._found)

    def _is_wanted(self, topic: str) -> bool:
        options = self._options
        if not options.topic_pattern:
            return topic in options.topics
        return is_valid_name(topic.encode()) and bool(re.fullmatch(options.topic_pattern, topic))

    async def ask_all(
        self, names: Iterable[LogName], ask: Callable[[LogName], Awaitable[T | None]]
    ) -> dict[LogName, T]:
        """The answers about several logs; none for a topic that there is not, or an nsqd `away`.

        Raises:
            TopicLogError, DataLossError: of the first log that has one.
        """
        answers: dict[LogName, T] = {}
        errors: list[Exception] = []
        self.away = {}
        limiter = trio.CapacityLimiter(_MAX_REQUESTS)

        async def ask_one(name: LogName) -> None:
            async with limiter:
                try:
                    answer = await ask(name)
                except NsqdAwayError as error:
                    self.away[name] = str(error)
                except (TopicLogError, DataLossError) as error:
                    errors.append(error)
                else:
                    if answer is not None:
                        answers[name] = answer

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ask_one, name, name=f"request about {name}")
        if errors:
            raise errors[0]
        return answers

    async def wait_for_all(
        self, names: Iterable[LogName], ask: Callable[[LogName], Awaitable[T | None]]
    ) -> dict[LogName, T]:
        """As `ask_all`, again until all nsqds have answered.

        Raises:
            NsqdAwayError: one does not within ``nsqdTimeout``.
        """
        answers = await self.ask_all(names, ask)
        deadline_s = trio.current_time() + self._options.nsqd_timeout_s
        while away := self.away:
            if trio.current_time() >= deadline_s:
                limit_s = self._options.nsqd_timeout_s
                raise NsqdAwayError(
                    f"no answer within {limit_s:g} s (nsqdTimeout): {'; '.join(away.values())}"
                )
            await trio.sleep(_RETRY_S)
            answers |= await self.ask_all(tuple(away), ask)
        return answers

    # One log

    async def find_place(self, name: LogName, position: str) -> Place | None:
        """The place of a position of nsqd; None if it has no such topic (yet).

        Raises:
            NsqdAwayError: it does not answer now.
            TopicLogError: the topic has no log, or nsqd refuses.
        """
        notes = await self._read_notes(name, {"from": position})
        return None if notes is None else _place_of(name, notes)

    async def find_lost(self, name: LogName, place: Place) -> int:
        """How many messages from the place on retention has removed; see `find_place` for errors.

        Raises:
            DataLossError: the place is of another log: the topic was deleted and made again, or
                nsqd has another data path.
        """
        notes = await self._read_notes(name, {"after": place.token})
        if notes is None:
            raise DataLossError(f"{name} is gone: nsqd has no such topic any more")
        return sum(int(note["to"]) - int(note["from"]) for note in notes if _is_skipped(note))

    async def find_time_ns(self, name: LogName, place: Place) -> int | None:
        """When the next message of a place was published; None if there is none."""
        answer = await self._request(
            "GET",
            name,
            "/topic/log",
            {"topic": name.topic, "after": place.token, "count": "1", "body": "base64"},
        )
        lines = () if answer is None else answer.splitlines()
        messages = (document for document in map(json.loads, lines) if "timestamp" in document)
        return next((int(document["timestamp"]) for document in messages), None)

    async def measure(self, name: LogName) -> LogSize | None:
        """How much a log has; for errors see `find_place`."""
        body = await self._request("GET", name, "/topic/settings", {"topic": name.topic})
        if body is None:
            return None
        settings = json.loads(body)
        first, last = settings.get("first"), settings.get("last")
        if not first or not last:
            return LogSize(0, 0)
        count = int(last["sequence"]) - int(first["sequence"]) + 1
        return LogSize(count, int(settings.get("bytes", 0)))

    async def seek_channel(self, name: LogName, channel: str, sequence: int) -> None:
        """Let a channel go on at a sequence; it is made if need be. For errors see `find_place`."""
        values = {"topic": name.topic, "channel": channel}
        try:
            await self._request("POST", name, "/channel/seek", values | {"to": str(sequence)})
        except _NoChannelError:
            values["from"] = str(sequence)
            await self._request("POST", name, "/channel/create", values)

    async def count_clients(self, name: LogName, channel: str) -> int:
        """The consumers of a channel; for errors see `find_place`."""
        values = {"topic": name.topic, "channel": channel, "format": "json"}
        body = await self._request("GET", name, "/stats", values)
        topics = json.loads(body)["topics"] if body else ()
        channels = [one for topic in topics for one in topic.get("channels") or ()]
        return sum(int(one["client_count"]) for one in channels if one["channel_name"] == channel)

    async def _read_notes(
        self, name: LogName, where: Mapping[str, str]
    ) -> list[Mapping[str, Any]] | None:
        values = {"topic": name.topic, "to": "0", **where}
        body = await self._request("GET", name, "/topic/log", values)
        return None if body is None else [json.loads(line) for line in body.splitlines()]

    async def _request(
        self, method: str, name: LogName, path: str, values: Mapping[str, str]
    ) -> bytes | None:
        """The body of the answer; None if there is no such topic."""
        base = name.nsqd if "://" in name.nsqd else f"http://{name.nsqd}"
        url = f"{base}{path}?{urlencode(values)}"
        secret = self._config.auth_secret
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        context = self._config.ssl_context() if url.startswith("https:") else None
        limits_s = (self._config.dial_timeout_s, _REQUEST_S)
        try:
            if method == "GET":
                answer = await httpget.get(url, headers, *limits_s, ssl_context=context)
            else:
                answer = await httpget.post(url, b"", headers, *limits_s, ssl_context=context)
        except httpget.GetError as error:
            raise NsqdAwayError(f"{name.nsqd}: {error}") from error
        return _body_of(name, answer)


class _NoChannelError(Exception):
    """There is no such channel."""


def _body_of(name: LogName, answer: httpget.Answer) -> bytes | None:
    if answer.status == 200:
        return answer.body
    try:
        message = str(json.loads(answer.body)["message"])
    except (ValueError, KeyError, TypeError):
        message = ""
    if may_pass(answer.status):
        raise NsqdAwayError(f"{name}: {answer.status} {message}")
    if message == "TOPIC_NOT_FOUND":
        return None
    if message == "CHANNEL_NOT_FOUND":
        raise _NoChannelError
    if message.startswith("TOKEN_OF_ANOTHER_LOG"):
        raise DataLossError(
            f"{name} is another log than the one of the checkpoint ({message}): the topic was "
            "deleted and made again, or nsqd has another data path"
        )
    if message.startswith("TOPIC_HAS_NO_LOG"):
        raise TopicLogError(
            f"{name} has no log: mode=log needs a topic that nsqd made with --storage=log; read "
            "this one with mode=receiver"
        )
    if answer.status in (404, 405):
        raise TopicLogError(
            f"{name.nsqd} can't show logs: it is no nsqd of trionsq, or an old one; read its "
            "topics with mode=receiver"
        )
    advice = f"; {ACCESS_ADVICE}" if answer.status in _ACCESS_STATUSES else ""
    raise TopicLogError(f"{name}: {answer.status} {message}{advice}")


def _place_of(name: LogName, notes: list[Mapping[str, Any]]) -> Place:
    for note in notes:
        if note.get("note") == "begin" and note.get("next"):
            return Place(int(note["from"]), str(note["next"]))
    raise NsqdAwayError(f"{name}: the answer names no place")


def _is_skipped(note: Mapping[str, Any]) -> bool:
    return note.get("note") == "skipped" and note.get("reason") == "removed"
