"""Names of a query's own, from its checkpoint: so queries of one topic need none by hand.

Spark tells a Python source its options and nothing else: neither the query's name nor its id nor
its checkpoint. So the user says the checkpoint to the source as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from pipelines.errors import OptionsError
from pipelines.options import log_place

__all__ = ["named_options"]

_OPTION: Final = "checkpointlocation"
_INVALID: Final = re.compile(r"[^.a-zA-Z0-9_-]+")
_MAX_NAME: Final = 48
_FOLDER: Final = "nsq"


def named_options(options: Mapping[str, str], *, has_log: bool) -> dict[str, str]:
    """The options without ``checkpointLocation``, which gives them what they lack.

    ``channel`` is the checkpoint's last part and a digest of the whole; ``walPath``, with
    ``has_log``, a folder in it.

    Raises:
        OptionsError: a log can't be where the checkpoint is, as in HDFS.
    """
    names = {key.lower(): value for key, value in options.items()}
    location = names.pop(_OPTION, "").strip().rstrip("/")
    if not location:
        return names
    digest = hashlib.sha256(location.encode()).hexdigest()[:8]
    name = _INVALID.sub("-", location.rpartition("/")[2])[-_MAX_NAME:]
    names.setdefault("channel", f"{name}-{digest}")
    if has_log and "walpath" not in names:
        try:
            names["walpath"] = f"{log_place(location)}/{_FOLDER}"
        except ValueError as error:
            raise OptionsError(
                f"options of format nsq:\n  checkpointLocation: {error}; or set walPath"
            ) from error
    return names
