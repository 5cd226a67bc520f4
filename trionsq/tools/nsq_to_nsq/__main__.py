"""``python -m trionsq.tools.nsq_to_nsq``."""

from trionsq.tools.nsq_to_nsq import main

raise SystemExit(main())
