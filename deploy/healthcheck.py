#!/usr/bin/env python3
"""``nsq-ready [URL]``: exit code 0 if the response is 200, else 1 and one line with the reason.

The health check of the images, which have no curl. It uses Python's standard library only.
"""

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Final

URL: Final = "http://127.0.0.1:4151/ready"
LIMIT_S: Final = 4.0
MAX_REASON_BYTES: Final = 500


def main(argv: Sequence[str]) -> int:
    """Request the URL, by default /ready of an nsqd on this machine; the exit code."""
    url = argv[0] if argv else URL
    # A health check must not go through a proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=LIMIT_S) as response:
            response.read(MAX_REASON_BYTES)
        return 0
    except urllib.error.HTTPError as error:
        reason = error.read(MAX_REASON_BYTES).decode(errors="replace")
        print(f"{url}: {error.code} {reason}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"{url}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
