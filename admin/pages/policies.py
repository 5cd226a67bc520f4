"""Policies of all nodes: what they are, whether nodes agree, and a form that sets one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import trio
from msgspec import Struct
from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import url_of
from admin.pages.node_requests import NodeAnswers, ask_nodes, each_node, node_names
from admin.pages.site import Site, arguments
from admin.pages.wording import plain_error, plural
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError

__all__ = ["AppliedSetting", "PolicyPages", "applied_settings"]

_MAX_NAME: Final = 64
_MAX_TEXT: Final = 32 * 1024
_HEADS: Final = ("topics", "channels", "priority")
_EXAMPLE: Final = {"topics": "orders*", "channels": "*", "priority": 0, "max_attempts": 5}


class PoliciesOfNode(Struct):
    """The answer to /policy."""

    policies: list[dict[str, Any]] | None = None
    file_error: str | None = None


@dataclass(slots=True)
class _Policy:
    """A policy; ``variants``: its settings as JSON, and the nodes that have it so."""

    name: str
    variants: dict[str, list[str]] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)

    @property
    def nodes(self) -> list[str]:
        return [node for nodes in self.variants.values() for node in nodes]

    @property
    def text(self) -> str:
        """The settings of most nodes."""
        return max(self.variants, key=lambda text: len(self.variants[text]))

    @property
    def settings(self) -> dict[str, Any]:
        return dict(json.loads(self.text))

    @property
    def summary(self) -> list[str]:
        """What it sets, each as ``max_age 24h``."""
        return [
            f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"
            for key, value in self.settings.items()
            if key not in _HEADS
        ]


class PolicyPages:
    """GET /policies, GET /policies/edit and POST /do/policy."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._upstream = site.dashboard.upstream

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", "/policies", self.policies),
            ("GET", "/policies/edit", self.edit),
            ("POST", "/do/policy", self.change),
        ]

    async def policies(self) -> Response:
        """GET /policies."""
        answers = await self._ask()
        errors = [
            f"{node}: the policy file is not used: {answer.file_error}"
            for node, answer in answers.values.items()
            if answer.file_error
        ]
        return self._site.page(
            "policies.html",
            "Policies",
            "policies",
            policies=sorted(_by_name(answers).values(), key=lambda policy: policy.name),
            nodes=len(answers.values),
            lacking=answers.lacking,
            warnings=[*answers.warnings, *errors],
            error="",
        )

    async def edit(self) -> Response:
        """GET /policies/edit: ``name`` of the policy; without it a new one."""
        name = arguments().get("name", "")[:_MAX_NAME]
        policy = _by_name(await self._ask()).get(name)
        settings = policy.settings if policy is not None else _EXAMPLE
        return self._form(name, json.dumps(settings, indent=2), policy)

    def _form(
        self, name: str, text: str, policy: _Policy | None, problems: Iterable[str] = ()
    ) -> Response:
        return self._site.page(
            "policy.html",
            f"Policy {name}" if name else "New policy",
            "policies",
            name=name,
            text=text,
            policy=policy,
            warnings=[],
            error="\n".join(map(plain_error, problems)),
        )

    async def change(self) -> Response:
        """POST /do/policy: ``verb`` is save or delete, ``name``, and ``text``, the JSON."""
        fields = await form()
        verb, name = fields.get("verb", ""), fields.get("name", "").strip()[:_MAX_NAME]
        text = fields.get("text", "").replace("\r\n", "\n")[:_MAX_TEXT]
        if verb not in ("save", "delete") or not name:
            raise HttpError(400, "INVALID_ACTION")
        record = self._site.dashboard.access.record_action
        body, method = b"", "DELETE"
        if verb == "save":
            try:
                settings = json.loads(text)
            except (ValueError, RecursionError) as error:
                record("save_policy", note=f"{name}: not JSON")
                return self._form(name, text, None, [f"The text is not JSON: {error}."])
            if isinstance(settings, dict):
                settings = {k: v for k, v in settings.items() if k not in ("name", "source")}
            body, method = json.dumps(settings).encode(), "PUT"
        had = await self._ask()

        async def send(node: str) -> None:
            url = url_of(node, f"/policy/{quote(name, safe='')}")
            await self._upstream.send(method, url, body)

        answers = await each_node(had.values, send)
        problems = [each for each in answers.warnings if "POLICY_NOT_FOUND" not in each]
        done = len(answers.values)
        record(f"{verb}_policy", note="; ".join([f"{name}, {plural(done, 'node')}", *problems]))
        if not done and verb == "save":
            reasons = list(dict.fromkeys(map(plain_error, problems)))
            return self._form(name, text, None, reasons or ["No node takes policies."])
        word = "Saved" if verb == "save" else "Deleted"
        if not done:
            lines = ["Nothing was done: no node has this policy.", *problems]
            return self._site.done(self._site.url("policies"), lines, "bad")
        lines = [f"{word} policy {name} on {plural(done, 'node')}.", *problems]
        if had.warnings:
            lines += ["Nodes that did not answer are as they were:", *had.warnings]
        kind = "warn" if problems or had.warnings else "good"
        return self._site.done(self._site.url("policies"), lines, kind)

    async def _ask(self) -> NodeAnswers[PoliciesOfNode]:
        await self._site.dashboard.poller.current()
        return await ask_nodes(self._site, node_names(self._site), "/policy", PoliciesOfNode)


def _by_name(answers: NodeAnswers[PoliciesOfNode]) -> dict[str, _Policy]:
    found = dict[str, _Policy]()
    for node, answer in answers.values.items():
        for document in answer.policies or ():
            settings = dict(document)
            name, source = str(settings.pop("name", "")), str(settings.pop("source", ""))
            policy = found.setdefault(name, _Policy(name))
            policy.variants.setdefault(json.dumps(settings), []).append(node)
            policy.sources.add(source)
    return found


class _Settings(Struct):
    settings: dict[str, dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class AppliedSetting:
    """A setting of a channel; ``policy`` makes it; ``differs``: not on all nodes."""

    key: str
    value: str
    policy: str
    differs: bool


async def applied_settings(
    site: Site, nodes: Iterable[str], topic: str, channel: str
) -> list[AppliedSetting]:
    """What policies set of a channel, of the nodes that say so within a second."""
    values: Mapping[str, _Settings] = {}
    with trio.move_on_after(1.0):
        answers = await ask_nodes(
            site, nodes, "/channel/settings", _Settings, topic=topic, channel=channel
        )
        values = answers.values
    found = dict[str, list[tuple[str, str]]]()
    for answer in values.values():
        for key, entry in (answer.settings or {}).items():
            value = entry.get("value")
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found.setdefault(key, []).append((text, str(entry.get("policy", ""))))
    return [
        AppliedSetting(key, *entries[0], len(set(entries)) > 1 or len(entries) < len(values))
        for key, entries in sorted(found.items())
    ]
