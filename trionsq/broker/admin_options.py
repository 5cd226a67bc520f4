"""The options of the dashboard inside nsqd."""

from trionsq.options import BOOL, STRING, choice, option

ADMIN_ACCESS = choice("way", "auto", "none", "password")


def admin_option() -> bool:
    """The option --admin."""
    return option(
        "admin", False, BOOL, "serve nsqadmin's dashboard for this nsqd at /admin over HTTP"
    )


def admin_access_option() -> str:
    """The option --admin-access."""
    return option(
        "admin-access",
        "auto",
        ADMIN_ACCESS,
        "access to the dashboard: auto, none or password",
        note="auto: no sign-in if only this machine can connect, else password",
    )


def admin_users_file_option() -> str:
    """The option --admin-users-file."""
    return option(
        "admin-users-file",
        "",
        STRING,
        "path of the users file, see nsqadmin --add-user (empty: user admin, password in the log)",
    )
