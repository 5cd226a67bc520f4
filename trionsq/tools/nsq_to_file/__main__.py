"""``python -m trionsq.tools.nsq_to_file``."""

from trionsq.tools.nsq_to_file import main

raise SystemExit(main())
