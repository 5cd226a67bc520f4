"""/policy and /channel/settings: policies, and what they set of a topic or channel.

The original has no such endpoints.
"""

from __future__ import annotations

import json
from typing import Final

import trio
from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.policies import PolicyOfFile
from trionsq.core.policies import AppliedSettings, Policy, PolicyError, parse_policy
from trionsq.http.admin import Administration
from trionsq.web.protocol import HttpError, json_bytes
from trionsq.web.request import read_body
from trionsq.web.responses import Pieces, empty, json_document, json_pieces

__all__ = ["PolicyEndpoints", "settings_document"]

_MAX_POLICY_BYTES: Final = 64 * 1024
# Policies that are listed before other tasks run.
_TURN_POLICIES: Final = 200


def settings_document(settings: AppliedSettings | None) -> dict[str, object]:
    """Return each setting that a policy makes, and which policy that is."""
    if settings is None:
        return {}
    return {
        key: {"value": value, "policy": settings.sources[key]}
        for key, value in settings.document().items()
    }


class PolicyEndpoints:
    """The endpoints."""

    def __init__(self, broker: Broker, admin: Administration) -> None:
        self._policies = broker.policies
        self._admin = admin

    async def list_all(self) -> Response:
        """GET /policy: all policies, by name."""
        policies = self._policies
        pieces = Pieces()
        pieces.add(b'{"policies":[')
        for place, (_, policy) in enumerate(sorted(policies.applied.policies.items())):
            part = json_bytes(self._row(policy))
            pieces.add(b"," + part if place else part)
            if place % _TURN_POLICIES == _TURN_POLICIES - 1:
                await trio.lowlevel.checkpoint()
        pieces.add(b'],"file_error":' + json_bytes(policies.file_error) + b"}")
        return json_pieces(pieces.finish())

    async def get(self, name: str) -> Response:
        """GET /policy/<name>."""
        policy = self._policies.applied.policies.get(name)
        if policy is None:
            raise HttpError(404, "POLICY_NOT_FOUND")
        return json_document(self._row(policy))

    def _row(self, policy: Policy) -> dict[str, object]:
        source = "file" if policy.name in self._policies.of_file else "http"
        return {"name": policy.name, "source": source, **policy.document()}

    async def put(self, name: str) -> Response:
        """PUT /policy/<name>: make or replace it; the answer comes when it applies everywhere."""
        body = await read_body(_MAX_POLICY_BYTES)
        if body is None:
            raise HttpError(413, "BODY_TOO_BIG")
        try:
            policy = parse_policy(name, json.loads(body))
        except PolicyError as error:
            raise HttpError(400, f"INVALID_POLICY: {error}") from error
        except (ValueError, RecursionError) as error:
            raise HttpError(400, "INVALID_POLICY: the body is not JSON") from error
        try:
            is_durable = await self._policies.put(policy)
        except PolicyOfFile as error:
            raise HttpError(409, "POLICY_IS_OF_THE_FILE") from error
        if not is_durable:
            raise HttpError(500, "NOT_DURABLE: the disk did not take the policies")
        return json_document(self._row(policy))

    async def delete(self, name: str) -> Response:
        """DELETE /policy/<name>: what it set holds no more when the answer comes."""
        try:
            is_durable = await self._policies.delete(name)
        except KeyError as error:
            raise HttpError(404, "POLICY_NOT_FOUND") from error
        except PolicyOfFile as error:
            raise HttpError(409, "POLICY_IS_OF_THE_FILE") from error
        if not is_durable:
            raise HttpError(500, "NOT_DURABLE: the disk did not take the policies")
        return empty()

    async def channel_settings(self) -> Response:
        """GET /channel/settings: what policies set of a channel."""
        channel = self._admin.existing_channel()
        return json_document(
            {
                "topic": channel.topic.name,
                "channel": channel.name,
                "settings": settings_document(channel.core.settings),
            }
        )
