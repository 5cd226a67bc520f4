"""Of the process itself: /live, /ready and the debug pages, guarded by --debug-from."""

from __future__ import annotations

from collections.abc import Iterable

from admin.dashboard import Dashboard
from trionsq.web.app import Endpoint
from trionsq.web.diagnostics import Health, Pprof, guarded

__all__ = ["endpoints"]


def endpoints(dashboard: Dashboard) -> Iterable[Endpoint]:
    """The paths, as nsqd and nsqlookupd have them."""
    # It keeps nothing, and a cluster that is down is what it is there to show.
    yield from Health(lambda: None).endpoints()
    for page in Pprof("/debug/pprof").endpoints():
        yield guarded(page, lambda: dashboard.options.debug_from)
