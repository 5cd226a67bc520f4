"""One Spark session for all tests of pipelines: starting it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.pipelines.settings import MASTER, SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session without UI. The test that starts a query stops it."""
    from pipelines.session import spark_session

    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = spark_session("tests", MASTER, **SETTINGS, **warehouse)
    yield session
    session.stop()
