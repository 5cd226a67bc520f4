"""The comparison of nsqadmin's answers: it must notice what it is there to notice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.admin_compare import differs


@pytest.mark.parametrize(
    ("expected", "got", "unordered"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, {"a": 2}], [{"a": 2}, 1], True),
        ("1.2.3.4:5/<addr>", "1.2.3.4:5/[::1]:9", False),
        ("<addr>", "", False),
        ("<int>", 5, False),
        ("<str>", "", False),
        ("<version>", "1.3.0", False),
    ],
)
def test_what_is_the_same(expected: Any, got: Any, unordered: bool) -> None:
    """Masks stand for what they say, also within a string."""
    assert differs(expected, got, unordered=unordered) == ""


@pytest.mark.parametrize(
    ("expected", "got", "unordered"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ([1, 2], [2, 1], False),
        ([1, 1, 2], [1, 2, 2], True),
        ([1], [1, 1], True),
        ("a/<addr>", "b/1.2.3.4:5", False),
        ("<addr>", "1.2.3.4", False),
        ("<int>", True, False),
        ("<int>", "5", False),
        ("<str>", 5, False),
        (None, [], False),
        (0, False, False),
        (False, 0, False),
        ("x", "xy", False),
    ],
)
def test_what_differs(expected: Any, got: Any, unordered: bool) -> None:
    """And the text says where."""
    assert differs(expected, got, unordered=unordered).startswith("$")
