"""Commands: flags, log lines, and the joining of daemons into processes."""
