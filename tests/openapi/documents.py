"""The OpenAPI documents in docs/openapi, as operations whose references are resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator, FormatChecker

__all__ = [
    "DAEMONS",
    "FOLDER",
    "Operation",
    "Parameter",
    "document",
    "operations",
    "references",
    "validator",
]

FOLDER: Final = Path(__file__).parents[2] / "docs" / "openapi"
DAEMONS: Final = ("nsqd", "nsqlookupd", "nsqadmin")
# That of jsonschema checks what is installed by chance.
_FORMATS: Final = FormatChecker(formats=())
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_METHODS: Final = ("get", "post", "put", "delete")


@_FORMATS.checks("date-time", ValueError)
def _is_time(value: object) -> bool:
    """Whether a text is a time as RFC 3339 writes it."""
    if not isinstance(value, str):
        return True
    return _TIME.fullmatch(value) is not None and bool(datetime.fromisoformat(value))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation."""

    name: str
    place: str
    is_required: bool
    schema: Mapping[str, Any]
    example: str | None


@dataclass(frozen=True, slots=True)
class Operation:
    """What one method does at one path.

    Attributes:
        daemon: whose it is.
        method: in upper case.
        path: with ``{parameters}``.
        name: its operationId.
        tags: of the document.
        parameters: those of the path as well.
        bodies: examples of a request's body; None: it has none.
        responses: by status; ``default`` is left out.
    """

    daemon: str
    method: str
    path: str
    name: str
    tags: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    bodies: tuple[Any, ...] | None
    responses: Mapping[int, Mapping[str, Any]]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def query_names(self) -> set[str]:
        """The parameters of its query."""
        return {one.name for one in self.parameters if one.place == "query"}


@cache
def document(daemon: str) -> dict[str, Any]:
    """The document as it is in its file."""
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / f"{daemon}.yaml").read_text("utf-8"))
    return loaded


@cache
def operations(daemon: str) -> tuple[Operation, ...]:
    """All operations of a daemon, in the order of its document."""
    return tuple(
        _operation(daemon, method, path, item[method], item.get("parameters", []))
        for path, item in document(daemon)["paths"].items()
        for method in _METHODS
        if method in item
    )


def _operation(daemon: str, method: str, path: str, raw: Any, shared: list[Any]) -> Operation:
    whole = document(daemon)
    parameters = [_resolved(whole, one) for one in [*shared, *raw.get("parameters", [])]]
    bodies = None
    if "requestBody" in raw:
        (media,) = _resolved(whole, raw["requestBody"])["content"].values()
        many = media.get("examples", {"": {"value": media.get("example")}})
        bodies = tuple(one["value"] for one in many.values())
    return Operation(
        daemon,
        method.upper(),
        path,
        raw["operationId"],
        tuple(raw["tags"]),
        tuple(
            Parameter(
                one["name"],
                one["in"],
                one.get("required", False),
                _resolved(whole, one["schema"]),
                one.get("example"),
            )
            for one in parameters
        ),
        bodies,
        {
            int(status): _resolved(whole, response)
            for status, response in raw["responses"].items()
            if status != "default"
        },
    )


def _resolved(whole: Any, value: Any) -> Any:
    """What a reference names; anything else as it is."""
    while isinstance(value, dict) and "$ref" in value:
        target: Any = whole
        for part in value["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        value = target
    return value


def references(value: Any) -> Iterator[str]:
    """All references in a document."""
    if isinstance(value, dict):
        for key, member in value.items():
            if key == "$ref":
                yield member
            else:
                yield from references(member)
    elif isinstance(value, list):
        for member in value:
            yield from references(member)


@cache
def _strict_components(daemon: str) -> Any:
    return _strict(document(daemon)["components"])


def _strict(value: Any) -> Any:
    """Schemas that allow no member of an object that they do not name."""
    if isinstance(value, list):
        return [_strict(each) for each in value]
    if not isinstance(value, dict):
        return value
    strict = {key: _strict(each) for key, each in value.items()}
    if isinstance(value.get("properties"), dict) and "type" in value:
        strict.setdefault("additionalProperties", False)
    return strict


def validator(daemon: str, schema: Mapping[str, Any]) -> Draft202012Validator:
    """Checks values against a schema of a daemon's document; see `_strict`."""
    return Draft202012Validator(
        {**_strict(dict(schema)), "components": _strict_components(daemon)},
        format_checker=_FORMATS,
    )
