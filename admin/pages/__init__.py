"""The pages for browsers: HTML made on the server, kept live by htmx where there is script.

- `format`, `bodies`, `listing`, `merging`: numbers, messages, tables, sums
- `drawing`, `charts`: lines as SVG, and those of a series of the history
- `settings`: what nodes say of their engines
- `shared_queries`: what several pages ask, once a second for all viewers
- `site`: the frame of all pages, and error pages
- `node_list`, `node_facts`: what pages of nodes show
- `overview`, `topics`, `topic`, `nodes`, `messages`, `account`: the pages
- `forms`: what users do by them

A page shows the poller's last snapshot; those of one topic, channel or node ask the nodes for the
rest. Spec: nsqadmin, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable

from admin.dashboard import Dashboard
from admin.pages.account import AccountPages
from admin.pages.clients import ClientPage
from admin.pages.drain import DrainPages
from admin.pages.find import SearchPage
from admin.pages.forms import FormHandlers
from admin.pages.letters import LetterPages
from admin.pages.live_parts import shared_live_parts
from admin.pages.lookup import LookupPage
from admin.pages.messages import MessagePages
from admin.pages.nodes import NodePages
from admin.pages.overview import OverviewPages
from admin.pages.peeking import PeekSupport
from admin.pages.policies import PolicyPages
from admin.pages.publish import PublishPages
from admin.pages.selection import SelectionForms
from admin.pages.settings import SettingsQueries
from admin.pages.site import Site
from admin.pages.topic import TopicPages
from admin.pages.topics import TopicListPages
from trionsq.web.app import Endpoint

__all__ = ["endpoints"]


def endpoints(dashboard: Dashboard) -> Iterable[Endpoint]:
    """The pages and the forms of ``dashboard``."""
    site = Site(dashboard)
    dashboard.start_task("nsqadmin templates", site.compile_templates)
    peekers = PeekSupport(dashboard.upstream)
    settings = SettingsQueries(dashboard.upstream)
    clients = ClientPage(site)
    for watched in (
        OverviewPages(site),
        TopicListPages(site),
        TopicPages(site, peekers, settings),
        clients,
        SearchPage(site, clients),
        NodePages(site, settings),
    ):
        yield from shared_live_parts(site, watched.endpoints())
    yield from LookupPage(site).endpoints()
    yield from FormHandlers(site).endpoints()
    yield from SelectionForms(site).endpoints()
    yield from LetterPages(site).endpoints()
    yield from PolicyPages(site).endpoints()
    yield from DrainPages(site).endpoints()
    yield from MessagePages(site, peekers, settings).endpoints()
    yield from PublishPages(site).endpoints()
    yield from AccountPages(site).endpoints()
