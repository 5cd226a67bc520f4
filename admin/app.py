"""The application: every path of the dashboard, below the base path.

Spec: nsqadmin, section 2. A part has a function ``endpoints(dashboard)``; it is named in `_PARTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from quart_trio import QuartTrio

from admin import api, assets, compression, debugging, metrics, pages
from admin.access import signin
from admin.access.modes import Mode
from admin.dashboard import Dashboard
from admin.pages.refusals import refusal_pages
from admin.watch import events
from trionsq.web.app import Endpoint, create_app
from trionsq.web.gate import Gate

__all__ = ["BODY_NBYTES_MAX", "create_admin_app", "gate_of"]

BODY_NBYTES_MAX: Final = 1024 * 1024
"""The longest request body that is read."""

_PARTS: Final[tuple[Callable[[Dashboard], Iterable[Endpoint]], ...]] = (
    api.endpoints,
    assets.endpoints,
    debugging.endpoints,
    metrics.endpoints,
    pages.endpoints,
    events.endpoints,
    signin.endpoints,
)


def gate_of(dashboard: Dashboard) -> Gate:
    """What stands before the HTTP of ``dashboard``.

    `admin.access` looks at where changes come from. The Host header matters only where whoever gets
    here need not say who they are.
    """
    is_open = dashboard.access.mode in (Mode.NONE, Mode.LOCAL)
    return Gate.of(dashboard.options, checks_hosts=is_open, checks_writes=False)


def create_admin_app(dashboard: Dashboard, gate: Gate | None = None) -> QuartTrio:
    """All that is shown and answered of ``dashboard``, to those whom ``gate`` lets in."""
    gate = gate_of(dashboard) if gate is None else gate
    endpoints = [
        (method, dashboard.path(path), function)
        for part in _PARTS
        for method, path, function in part(dashboard)
    ]
    app = create_app(endpoints, max_body_bytes=BODY_NBYTES_MAX, sites=gate.sites)
    # Before all other hooks: nothing is done for whom it is not for.
    dashboard.access.install(app)
    # Hooks of other parts are added here; what is registered first sees the answer last.
    app.after_request(compression.compressed)
    app.after_request(refusal_pages(dashboard))
    return app
