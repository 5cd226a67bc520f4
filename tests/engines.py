"""Which engine keeps the messages of the tests' topics.

``TRIONSQ_TEST_STORAGE=log`` gives a log to each topic of each nsqd that a test starts, in this
process or as a process of its own, unless the test chooses for itself.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from trionsq.broker.options import NsqdOptions

__all__ = ["ON_LOG", "use_engine"]

VARIABLE: Final = "TRIONSQ_TEST_STORAGE"


def _is_log() -> bool:
    match os.environ.get(VARIABLE, ""):
        case "" | "default":
            return False
        case "log":
            return True
        case other:
            raise pytest.UsageError(f"{VARIABLE}={other}: it may be default or log")


ON_LOG: Final = _is_log()

OPTIONS: Final = {"storage": "log", "durability": "always"} if ON_LOG else {}
"""Options of nsqd that a test does not set itself."""


def use_engine() -> None:
    """Have each `NsqdOptions` begin with `OPTIONS`."""
    made = NsqdOptions.__init__

    def with_engine(self: NsqdOptions, **values: Any) -> None:
        made(self, **(OPTIONS | values))

    if ON_LOG:
        NsqdOptions.__init__ = with_engine  # type: ignore[method-assign]
