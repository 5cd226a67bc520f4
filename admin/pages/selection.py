"""POST /do/selected: several topics or channels are paused, unpaused or deleted at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import trio
from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import AllFailed
from admin.cluster.steps import Verb
from admin.pages.account import safe_path
from admin.pages.site import Site
from admin.pages.wording import plural
from admin.watch.snapshot import TopicRow
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError
from trionsq.wire.names import is_valid_name

__all__ = ["LIMIT_S", "MAX_SELECTED", "SelectionForms"]

MAX_SELECTED: Final = 250
"""Rows of the longest page of a list."""
LIMIT_S: Final = 60.0
"""After so long the rest is left as it is, and the page says so."""

_DONE: Final = {"pause": "Paused", "unpause": "Unpaused", "delete": "Deleted"}


class SelectionForms:
    """The form of a list."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._operations = site.dashboard.operations
        self._poller = site.dashboard.poller

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("POST", "/do/selected", self.selected)]

    async def selected(self) -> Response:
        """POST /do/selected: fields ``verb``, ``on`` (``topic`` or ``topic/channel``) and ``back``.

        To delete requires an admin, and ``typed``: without it the page asks for it.
        """
        fields = await form()
        verb = fields.get("verb", "")
        names = [name for name in dict.fromkeys(fields.getlist("on")) if _is_name(name)]
        names = names[:MAX_SELECTED]
        if verb not in _DONE:
            raise HttpError(400, "INVALID_ACTION")
        if verb == "delete" and not self._site.may("admin"):
            raise HttpError(403, "FORBIDDEN")
        back = safe_path(fields.get("back", ""), self._site.dashboard.base_path)
        if not names:
            return self._site.done(back, ["Nothing was done: select a topic or channel."], "bad")
        wanted = _delete_phrase(names)
        if verb == "delete" and (typed := fields.get("typed", "").strip()) != wanted:
            return self._confirm(names, wanted, back, mistyped=bool(typed))
        return await self._do(verb, names, back)

    def _confirm(self, names: Sequence[str], wanted: str, back: str, *, mistyped: bool) -> Response:
        access = self._site.dashboard.access
        access.record_action("ask_to_delete", note=", ".join(names))
        held, is_known = 0, True
        for name in names:
            count = self._held(name)
            held, is_known = held + (count or 0), is_known and count is not None
        return self._site.page(
            "selected.html",
            "Delete",
            "topics",
            names=names,
            wanted=wanted,
            back=back,
            held=held,
            is_known=is_known,
            error="The typed text does not match." if mistyped else "",
        )

    def _held(self, name: str) -> int | None:
        """The messages of a topic or channel at the last poll; None: not known."""
        snapshot = self._poller.snapshot
        if snapshot is None:
            return None
        topic, _, channel = name.partition("/")
        row = snapshot.channels.get((topic, channel)) if channel else snapshot.topics.get(topic)
        if row is None or row.missing_nodes:
            return None
        waiting = row.depth + (row.channels_depth if isinstance(row, TopicRow) else 0)
        return waiting + row.in_flight + row.deferred

    async def _do(self, verb: str, names: Sequence[str], back: str) -> Response:
        done, problems = 0, list[str]()
        with trio.move_on_after(LIMIT_S) as scope:
            for name in names:
                topic, _, channel = name.partition("/")
                try:
                    warnings = await self._apply(verb, topic, channel)
                    done += 1
                    problems += [f"{name}: {warning}" for warning in warnings]
                except AllFailed as failure:
                    problems.append(f"{name}: {failure}")
        if scope.cancelled_caught:
            problems.append(f"Stopped after {LIMIT_S:.0f} s: the rest is as it was.")
        kind = "channel" if "/" in names[0] else "topic"
        text = f"{_DONE[verb]} {plural(done, kind)}."
        if done < len(names):
            text = f"{text[:-1]} of {len(names):,}."
        return self._site.done(back, [text, *problems], "warn" if problems else "good")

    async def _apply(self, verb: str, topic: str, channel: str) -> list[str]:
        known = [producer.node for producer in self._poller.producers(topic)]
        if verb == "delete":
            return await self._operations.delete(topic, channel, known, if_there=True)
        way: Verb = "pause" if verb == "pause" else "unpause"
        reached = await self._operations.apply(way, topic, channel, known, if_there=True)
        return reached.warnings if reached.nodes else ["no node has it."]


def _delete_phrase(names: Sequence[str]) -> str:
    """What has to be typed: the name if it is one, else how many."""
    return names[0] if len(names) == 1 else f"delete {len(names)}"


def _is_name(name: str) -> bool:
    parts = name.split("/")
    return len(parts) <= 2 and all(is_valid_name(part.encode(errors="replace")) for part in parts)
