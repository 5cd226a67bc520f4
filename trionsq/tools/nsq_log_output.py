"""The flags of nsq_log, and what it prints: lines, or one JSON document.

``trionsq log`` has the same flags and output under its own name.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any, Final

from trionsq.options import BOOL, INT, STRING, choice, option

__all__ = ["LogOutput", "NsqLogOptions"]

_TOOL: Final = "nsq_log"


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqLogOptions:
    """The flags."""

    version: bool = option("version", False, BOOL, "print the version and exit")
    json: bool = option("json", False, BOOL, "print one JSON document; cat always prints lines")
    topic: str = option("topic", "", STRING, "only this topic; cat needs it")
    incarnation: int = option("incarnation", 0, INT, "cat: the topic's number (0: the highest)")
    from_sequence: int = option("from-sequence", 0, INT, "cat: the first sequence")
    count: int = option("count", 0, INT, "cat: how many messages (0: all)")
    format: str = option(
        "format", "json", choice("form", "json", "raw"), "cat: json lines, or raw bodies by line"
    )
    nsqd_http_address: str = option(
        "nsqd-http-address", "", STRING, "backup: the nsqd whose logs to back up"
    )


class LogOutput:
    """What one command prints.

    Attributes:
        tool: the name before each line on stderr.
        document: printed at the end if the output is JSON.
    """

    def __init__(self, tool: str = _TOOL, *, as_json: bool = False) -> None:
        self.tool = tool
        self.document: dict[str, Any] = {}
        self._as_json = as_json
        self._findings: list[dict[str, str]] = []
        self._remarks: list[str] = []

    def remark(self, text: str) -> None:
        """Write a line to stderr."""
        print(f"{self.tool}: {text}", file=sys.stderr)
        self._remarks.append(text)

    def line(self, text: str) -> None:
        """Print a line for people."""
        if not self._as_json:
            print(text)

    def finding(self, file: str, text: str) -> None:
        """Print what was found in a file."""
        self.line(f"{file}: {text}")
        self._findings.append({"file": file, "text": text})

    def finish(self) -> None:
        """Print the document, if the output is JSON."""
        if self._as_json:
            rest = {"findings": self._findings, "remarks": self._remarks}
            print(json.dumps(self.document | rest, indent=2))
