"""``python -m trionsq.tools.nsq_to_http``."""

from trionsq.tools.nsq_to_http import main

raise SystemExit(main())
