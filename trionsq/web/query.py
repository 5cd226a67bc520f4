"""The parameters of the request that is being answered; see `trionsq.web.parameters`."""

from __future__ import annotations

from quart import request

from trionsq.web.parameters import Query, flag, parse_query, valid_argument, valid_topic_name

__all__ = ["Query", "flag", "parse_query", "query", "valid_argument", "valid_topic_name"]


def query() -> Query:
    """The parameters of the request that is being answered; raises as `parse_query`."""
    return parse_query(request.query_string)
