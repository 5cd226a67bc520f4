"""Lets Spark find ``format("nsq")`` without registration.

Spark imports ``DefaultSource`` from every top-level module whose name begins with ``pyspark_``. The
wheel has this file as the top-level module ``pyspark_nsq``. Beside a program with its own folder
``pipelines`` the source is found as well, and says what hides ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trionsq.installation import HiddenPackageError, require_own_package

if TYPE_CHECKING:
    from pipelines.source.datasource import NsqDataSource as DefaultSource
else:
    try:
        require_own_package("pipelines")
        from pipelines.source.datasource import NsqDataSource as DefaultSource
    except HiddenPackageError as error:
        from pyspark.sql.datasource import DataSource

        _WHY = str(error)

        class DefaultSource(DataSource):
            """Stands in for the source that can't be imported: using it raises the reason."""

            @classmethod
            def name(cls) -> str:
                """The format's name."""
                return "nsq"

            def __init__(self, options: dict[str, str]) -> None:
                raise HiddenPackageError(_WHY, name="pipelines")


__all__ = ["DefaultSource"]
