"""What every daemon shares: flags, the config file, log lines, signals, listeners."""
