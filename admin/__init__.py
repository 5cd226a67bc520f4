"""The dashboard, nsqadmin. Not built yet.

This package will hold the JSON API that joins the statistics of many nsqd and nsqlookupd, the
pages that show them, access control, and the ``nsqadmin`` command.
"""
