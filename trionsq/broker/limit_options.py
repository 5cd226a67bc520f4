"""The options that bound what a node takes: connections, disk, memory; and the policies."""

from trionsq.options import INT, STRING, option


def max_connections_option() -> int:
    """The option --max-connections."""
    return option(
        "max-connections", 0, INT, "maximum TCP connections; more are closed at once (0: no limit)"
    )


def max_connection_rate_option() -> int:
    """The option --max-connection-rate."""
    return option(
        "max-connection-rate",
        0,
        INT,
        "maximum TCP connections per second from one address (IPv6: one /64); more are closed at "
        "once (0: no limit)",
    )


def max_connection_burst_option() -> int:
    """The option --max-connection-burst."""
    return option(
        "max-connection-burst",
        0,
        INT,
        "maximum TCP connections at once from one address (0: twice --max-connection-rate)",
    )


def policy_file_option() -> str:
    """The option --policy-file."""
    return option(
        "policy-file",
        "",
        STRING,
        "path of a TOML file of policies, read again when it changes and at SIGHUP (empty: none)",
    )


def min_free_disk_option() -> int:
    """The option --min-free-disk."""
    return option(
        "min-free-disk",
        0,
        INT,
        "bytes of the data path's disk that stay free: below, publishes are refused (0: off)",
    )


def max_memory_option() -> int:
    """The option --max-memory."""
    return option(
        "max-memory",
        0,
        INT,
        "bytes of all waiting and deferred messages in memory together; what is over goes to "
        "disk, oldest queues first (0: no limit, but about 1 GiB for deferred ones)",
    )
