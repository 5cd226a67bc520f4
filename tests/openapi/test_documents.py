"""The documents and the routes of the daemons are the same, and the documents are sound."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from quart_trio import QuartTrio

from admin.app import create_admin_app
from admin.daemon import open_dashboard
from admin.options import NsqadminOptions, validated
from lookupd.api import lookupd_app
from lookupd.options import NsqlookupdOptions
from lookupd.registry import Registry
from tests.openapi.documents import DAEMONS, FOLDER, document, operations, references, validator
from trionsq.http.app import create_app
from trionsq.testing.memory import nsqd_in_memory

every_daemon = pytest.mark.parametrize("daemon", DAEMONS)


def routes(app: QuartTrio) -> Counter[str]:
    """Method and path of each route, as a document writes them."""
    return Counter(
        method + " " + re.sub(r"<(?:[a-z]+:)?([a-z]+)>", r"{\1}", rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD"}
    )


def documented(daemon: str) -> Counter[str]:
    return Counter(map(str, operations(daemon)))


async def test_nsqd_has_these_routes() -> None:
    """No route of nsqd is without an entry, and no entry without a route."""
    async with nsqd_in_memory() as broker:
        assert routes(create_app(broker)) == documented("nsqd")


def test_nsqlookupd_has_these_routes() -> None:
    """No route of nsqlookupd is without an entry, and no entry without a route."""
    app = lookupd_app(Registry(1, 1), NsqlookupdOptions(), lambda: 0)
    assert routes(app) == documented("nsqlookupd")


async def test_nsqadmin_has_these_routes() -> None:
    """No route of nsqadmin is without an entry, and no entry without a route."""
    options = NsqadminOptions(
        http_address="127.0.0.1:0",
        nsqd_http_address=("127.0.0.1:1",),
        graphite_url="http://127.0.0.1:1",
        proxy_graphite=True,
    )
    async with open_dashboard(validated(options), ("127.0.0.1",), 4171) as dashboard:
        assert routes(create_admin_app(dashboard)) == documented("nsqadmin")


def test_every_document_is_tested() -> None:
    """A file in docs/openapi belongs to a daemon, and has its name as its title."""
    assert {path.name for path in FOLDER.iterdir()} == {f"{daemon}.yaml" for daemon in DAEMONS}
    for daemon in DAEMONS:
        assert document(daemon)["info"]["title"] == daemon
        assert document(daemon)["openapi"].startswith("3.1.")


@every_daemon
def test_references_have_a_target_and_components_a_use(daemon: str) -> None:
    """A reader finds what is named, and everything that is there is of use."""
    whole = document(daemon)
    named = {
        f"#/components/{kind}/{name}"
        for kind, members in whole["components"].items()
        for name in members
        if kind != "securitySchemes"
    }
    assert set(references(whole)) == named


@every_daemon
def test_names_are_unique_and_parameters_of_paths_are_declared(daemon: str) -> None:
    """Generators of clients name functions by operationId, and fill in every part of a path."""
    found = operations(daemon)
    names = Counter(one.name for one in found)
    assert {name for name, count in names.items() if count > 1} == set()
    tags = {tag["name"] for tag in document(daemon)["tags"]}
    for one in found:
        declared = {part.name for part in one.parameters if part.place == "path"}
        assert declared == set(re.findall(r"{(\w+)}", one.path)), one
        assert all(part.is_required for part in one.parameters if part.place == "path"), one
        places = [(part.name, part.place) for part in one.parameters]
        assert len(places) == len(set(places)), one
        assert set(one.tags) <= tags, one


@every_daemon
def test_schemas_are_schemas_and_examples_are_examples(daemon: str) -> None:
    """Each schema is one of JSON Schema 2020-12, and has the examples of its parameters."""
    for schema in document(daemon)["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for one in operations(daemon):
        for part in one.parameters:
            Draft202012Validator.check_schema(part.schema)
            if part.example is not None:
                assert validator(daemon, part.schema).is_valid(part.example), (one, part)


def test_paths_in_the_guides_are_there() -> None:
    """What docs/replay.md and docs/peek.md show is in nsqd's document."""
    known = {one.path for one in operations("nsqd")}
    for guide in ("replay.md", "peek.md", "durability.md"):
        text = (FOLDER.parent / guide).read_text(encoding="utf-8")
        shown = set(re.findall(r"`(?:GET|POST) (/[a-z_/]+)", text))
        assert shown <= known, Path(guide)
