"""A Spark session that works after ``pip install 'trionsq[spark]'`` alone.

`prepare` sets what Spark's processes find in the environment, `spark_session` makes the session.
What does not fit together is told in one line (`SetupError`), not by a stack trace of a worker.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from pipelines.java import JavaError, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SetupError", "check_workers", "prepare", "spark_session"]

log = logging.getLogger("pipelines.session")

_SPARK_VERSIONS: Final = ((4, 2), (4, 4))
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL_DEFAULTS: Final = {
    # A machine whose own name can't be resolved is no reason to fail.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    # A stop amid foreachBatch has Spark match its own long error by a recursive pattern.
    "spark.driver.extraJavaOptions": "-Xss16m",
}

_PATIENCE_S: Final = 20.0
_STALLED: Final = (
    "the workers have done nothing for %g s: the cluster has no cores or memory to spare, or its "
    "executors end as soon as they start, as with a wrong Java (JAVA_HOME there must be a Java 17 "
    "or 21); the stderr in the workers' folders says more"
)
_REMOVED: Final = re.compile(
    "Master removed our application|stopped SparkContext|Spark context stopped"
)
# How Py4J begins: with what was called, not with what happened.
_CALL: Final = "An error occurred while calling"
_EXCEPTION: Final = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: ")


class SetupError(Exception):
    """Spark can't start here, or its workers do not fit. One line, which says what to do."""


def spark_session(name: str, master: str | None = None, **conf: str) -> SparkSession:
    """The running session, or a new one.

    Args:
        name: shown in Spark's UI and logs.
        master: by default what spark-submit was told, else ``local[*]``.
        conf: Spark's settings, ``**{"spark.ui.enabled": "true"}``; they win over ours: no UI, no
            progress bar, UTC, and for a local master as many shuffle partitions as cores and
            16 MiB of stack for each thread.

    Raises:
        SetupError: the wrong Java, Python or pyspark, here or on the workers.
    """
    prepare(master)
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession

    submitted = _is_submitted()
    if master is None and not submitted:
        master = "local[*]"
    is_local = (master or "").startswith("local")
    settings = (_DEFAULTS if not submitted else {}) | (_LOCAL_DEFAULTS if is_local else {}) | conf
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    try:
        session = builder.config(map=dict(settings)).getOrCreate()
    except Py4JJavaError as error:
        # The master may have given the program up before it has begun.
        if _REMOVED.search(str(error)):
            raise SetupError(_explain(str(error))) from None
        raise
    if not (session.sparkContext.master or "").startswith("local"):
        try:
            check_workers(session)
        except SetupError:
            session.stop()
            raise
    return session


def prepare(master: str | None = None) -> None:
    """Set JAVA_HOME, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON for Spark's processes.

    Workers on this machine are this Python. Where a cluster has another path for it, the user's
    own PYSPARK_PYTHON stands. Under spark-submit Java runs already.

    Raises:
        SetupError: no Java, or no pyspark, that fits.
    """
    _check_packages()
    submitted = _is_submitted()
    try:
        if not submitted:
            os.environ["JAVA_HOME"] = str(java_home())
    except JavaError as error:
        raise SetupError(str(error)) from error
    if (master or ("" if submitted else "local")).startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def _is_submitted() -> bool:
    """Whether spark-submit started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _check_packages() -> None:
    advice = "run `pip install 'trionsq[spark]'`"
    try:
        found = version("pyspark")
        version("pyarrow")
    except PackageNotFoundError as error:
        raise SetupError(f"{error.name} is not installed: {advice}") from error
    low, high = _SPARK_VERSIONS
    numbers = tuple(int(part) for part in found.split(".")[:2])
    if not low <= numbers < high:
        raise SetupError(f"pyspark is {found}; 4.2 or 4.3 is needed: {advice}")


def check_workers(session: SparkSession) -> None:
    """Run a small task on the workers; a line of the log if that takes long.

    Raises SetupError: they lack something.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    context = session.sparkContext
    mine = _describe()
    # Not an error: a cluster may be busy, and Spark waits for ever.
    patience = threading.Timer(_PATIENCE_S, log.warning, (_STALLED, _PATIENCE_S))
    patience.daemon = True
    patience.start()
    try:
        count = max(context.defaultParallelism, 2)
        theirs = set(context.parallelize(range(count), count).mapPartitions(_look).collect())
    except (Py4JJavaError, PySparkException) as error:
        raise SetupError(_explain(str(error))) from None
    finally:
        patience.cancel()
    if others := theirs - {mine}:
        raise SetupError(f"the driver has {mine}, but workers have {', '.join(sorted(others))}")


def _describe() -> str:
    python = ".".join(map(str, sys.version_info[:2]))
    return f"Python {python}, pyspark {version('pyspark')}, trionsq {version('trionsq')}"


def _look(_numbers: Iterable[int]) -> Iterable[str]:
    import pyarrow  # noqa: F401 -- that it is there

    yield _describe()


def _explain(text: str) -> str:
    """The one line that helps, for what Spark says of a worker that failed."""
    python = ".".join(map(str, sys.version_info[:2]))
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"workers run another Python; set PYSPARK_PYTHON to a Python {python} there"
    if "Cannot run program" in text:
        return f"workers have no {os.environ['PYSPARK_PYTHON']}: set PYSPARK_PYTHON to theirs"
    for line in text.splitlines():
        if "No module named" in line or "No package metadata" in line:
            return (
                f"workers lack a module ({line.strip()}): run `pip install 'trionsq[spark]'` for "
                "their Python, too"
            )
    if _REMOVED.search(text):
        return (
            "the workers' executors end as soon as they start, for a wrong Java most likely: set "
            "JAVA_HOME to a Java 17 or 21 there; the stderr in the workers' folders says more"
        )
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith(_CALL)), "no reason given")
    return f"a small task failed on the workers: {_EXCEPTION.sub('', first)}"
