"""What failed, in one line: Spark's exceptions have hundreds, of Java and of Python."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["one_line"]

_LENGTH_MAX: Final = 400
# Python's own last line of a traceback, as Spark quotes it
_RAISED: Final = re.compile(
    r"^(?:[\w.]+\.)?(?P<name>[A-Z]\w*(?:Error|Exception)): (?P<text>\S.*)$", re.MULTILINE
)
_JAVA: Final = re.compile(r"^(?:Caused by: )?(?:java|org|py4j|scala)\.[\w.$]*: ?(.*)", re.MULTILINE)
_NOISE: Final = ("PythonException", "SparkException", "StreamingQueryException", "Py4JJavaError")
_STACK: Final = "\n\tat "


def one_line(error: BaseException) -> str:
    """The reason that helps most: ours out of Python's traceback, else Spark's first line."""
    text = str(error)
    raised = [found for found in _RAISED.finditer(text) if found["name"] not in _NOISE]
    if raised:
        last = raised[-1]
        return _short(_whole(last, text))
    java = [found[1] for found in _JAVA.finditer(text) if found[1].strip()]
    first = next((line for line in text.splitlines() if line.strip()), "")
    return _short(java[-1] if _STACK in text and java else first or type(error).__name__)


def _whole(found: re.Match[str], text: str) -> str:
    """What was raised; of a list of problems the first one."""
    told = found["text"]
    if told.endswith(":"):
        told += text[found.end() :].lstrip("\n").partition("\n")[0]
    return told


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LENGTH_MAX else f"{line[:_LENGTH_MAX]}..."
