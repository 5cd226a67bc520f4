"""The templates of the pages: compiled beside the event loop."""

from __future__ import annotations

from typing import Any, NoReturn

import jinja2
import pytest

from admin.access.guard import Access
from admin.access.modes import Mode
from admin.access.users import FixedUsers
from admin.dashboard import Dashboard
from admin.options import NsqadminOptions, validated
from admin.pages.site import Site
from tests.admin.pages.support import LOOKUPD, Nodes, _FakeUpstream


async def test_no_page_waits_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the task of the dashboard is through, each template is there."""
    given = validated(NsqadminOptions(lookupd_http_address=(LOOKUPD,)))
    access = Access(given, Mode.NONE, FixedUsers(), lambda: 0.0)
    site = Site(Dashboard(given, _FakeUpstream(given, Nodes({})), access))
    await site.compile_templates()

    def refuse(*args: Any, **named: Any) -> NoReturn:
        raise AssertionError("a template is compiled")

    monkeypatch.setattr(jinja2.Environment, "compile", refuse)
    templates = site._templates.list_templates()
    assert len(templates) > 10
    for name in templates:
        site._templates.get_template(name)
