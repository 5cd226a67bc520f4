#!/usr/bin/env python3
"""``nsq-ready [URL]``: exit code 0 if the daemon answers 200 there, else 1 and one line why.

The health check of the images, which hold no curl. Python's standard library alone.
"""

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Final

URL: Final = "http://127.0.0.1:4151/ready"
LIMIT_S: Final = 4.0
REASON_NBYTES_MAX: Final = 500


def main(argv: Sequence[str]) -> int:
    """Ask the URL, by default an nsqd of this machine whether it is ready; the exit code."""
    url = argv[0] if argv else URL
    # A proxy of the environment has no business between a daemon and its own health check.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=LIMIT_S) as answer:
            answer.read(REASON_NBYTES_MAX)
        return 0
    except urllib.error.HTTPError as error:
        reason = error.read(REASON_NBYTES_MAX).decode(errors="replace")
        print(f"{url}: {error.code} {reason}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"{url}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
