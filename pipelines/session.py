"""A Spark session that works after ``pip install 'trionsq[spark]'`` alone.

`prepare` sets environment variables for Spark's processes, `spark_session` makes the session. A
version that does not match is reported in one line (`SetupError`), not by a worker's stack trace.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from pipelines.errors import JavaError, SetupError
from pipelines.java import java_home
from pipelines.scripts import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_workers", "is_submitted", "prepare", "spark_session"]

log = logging.getLogger("pipelines.session")

_SPARK_VERSIONS: Final = ((4, 2), (4, 4))
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL_DEFAULTS: Final = {
    # Works on a machine whose own name can't be resolved.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    # When a query is stopped in foreachBatch, Spark matches its long error with a recursive regex.
    "spark.driver.extraJavaOptions": "-Xss16m",
}

_STALL_WARNING_S: Final = 20.0
_STALLED: Final = (
    "the workers have done nothing for %g s: the cluster has no free cores or memory, or its "
    "executors exit as soon as they start, perhaps for a wrong Java (JAVA_HOME there must be a "
    "Java 17 or 21); the stderr in the workers' folders says more"
)
_REMOVED: Final = re.compile(
    "Master removed our application|stopped SparkContext|Spark context stopped"
)
# Py4J's first line, which names the call rather than the error
_CALL: Final = "An error occurred while calling"
_EXCEPTION: Final = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: ")


def spark_session(name: str, master: str | None = None, **conf: str) -> SparkSession:
    """The running session, or a new one.

    Args:
        name: shown in Spark's UI and logs.
        master: by default spark-submit's, else ``local[*]``.
        conf: Spark's settings, ``**{"spark.ui.enabled": "true"}``. They override these defaults: no
            UI, no progress bar, UTC, and for a local master as many shuffle partitions as cores and
            16 MiB of stack for each thread.

    Raises:
        SetupError: Java, Python or pyspark has the wrong version, here or on the workers; or the
            program uses Spark Connect.
    """
    prepare(master)
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise SetupError(
            "this program uses Spark Connect, where Java and the workers are the server's: make "
            "the session with SparkSession.builder.remote(...)"
        )

    submitted = is_submitted()
    if master is None and not submitted:
        master = "local[*]"
    is_local = (master or "").startswith("local")
    settings = (_DEFAULTS if not submitted else {}) | (_LOCAL_DEFAULTS if is_local else {}) | conf
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    try:
        if not submitted:
            _start_java(settings)
        session = builder.config(map=dict(settings)).getOrCreate()
    except Py4JJavaError as error:
        # The master may have removed the application before it started.
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


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Java in a process session of its own, unless it runs already.

    A signal to the program's process group (by a shell, or by timeout) does not reach it then: the
    program can end its queries in order. Java ends when the program does, for they share a pipe.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        conf = SparkConf().setAll([*settings.items()])
        gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


def prepare(master: str | None = None) -> None:
    """Set JAVA_HOME, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON for Spark's processes.

    Local workers run this Python. For a cluster, which may have Python at another path, the user's
    PYSPARK_PYTHON is kept. Under spark-submit Java is already running.

    Raises:
        SetupError: there is no suitable Java or pyspark.
    """
    _check_packages()
    submitted = is_submitted()
    try:
        if not submitted:
            os.environ["JAVA_HOME"] = str(java_home())
    except JavaError as error:
        raise SetupError(str(error)) from error
    python = sys.executable
    if (master or ("" if submitted else "local")).startswith("local"):
        os.environ["PYSPARK_PYTHON"] = python = worker_python()
    else:
        os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ["PYSPARK_DRIVER_PYTHON"] = python


def is_submitted() -> bool:
    """Whether spark-submit started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _check_packages() -> None:
    advice = "run `pip install 'trionsq[spark]'`"
    try:
        pyspark = version("pyspark")
        version("pyarrow")
    except PackageNotFoundError as error:
        raise SetupError(f"{error.name} is not installed: {advice}") from error
    low, high = _SPARK_VERSIONS
    numbers = tuple(int(part) for part in pyspark.split(".")[:2])
    if not low <= numbers < high:
        raise SetupError(f"pyspark is {pyspark}; 4.2 or 4.3 is needed: {advice}")


def check_workers(session: SparkSession) -> None:
    """Run a small task on the workers; logs a warning if that takes 20 s.

    Raises SetupError: they have another Python, pyspark or trionsq, or lack a package.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    context = session.sparkContext
    driver = _describe()
    # Only a warning: a cluster may be busy, and Spark waits without limit.
    warning = threading.Timer(_STALL_WARNING_S, log.warning, (_STALLED, _STALL_WARNING_S))
    warning.daemon = True
    warning.start()
    try:
        count = max(context.defaultParallelism, 2)
        workers = set(context.parallelize(range(count), count).mapPartitions(_worker).collect())
    except (Py4JJavaError, PySparkException) as error:
        raise SetupError(_explain(str(error))) from None
    finally:
        warning.cancel()
    if others := workers - {driver}:
        raise SetupError(f"the driver has {driver}, but workers have {', '.join(sorted(others))}")


def _describe() -> str:
    python = ".".join(map(str, sys.version_info[:2]))
    return f"Python {python}, pyspark {version('pyspark')}, trionsq {version('trionsq')}"


def _worker(_numbers: Iterable[int]) -> Iterable[str]:
    import pyarrow  # noqa: F401 -- fails if it is missing

    yield _describe()


def _explain(text: str) -> str:
    """One line of advice for Spark's text about a failed worker."""
    python = ".".join(map(str, sys.version_info[:2]))
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"workers run another Python; set PYSPARK_PYTHON to a Python {python} there"
    if "Cannot run program" in text:
        return f"workers have no {os.environ['PYSPARK_PYTHON']}: set PYSPARK_PYTHON to theirs"
    for line in text.splitlines():
        if "No module named" in line or "No package metadata" in line:
            return (
                f"workers lack a module ({line.strip()}): run `pip install 'trionsq[spark]'` for "
                "their Python as well"
            )
    if _REMOVED.search(text):
        return (
            "the workers' executors exit as soon as they start, most likely for a wrong Java: set "
            "JAVA_HOME to a Java 17 or 21 there; the stderr in the workers' folders says more"
        )
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith(_CALL)), "no reason given")
    return f"a small task failed on the workers: {_EXCEPTION.sub('', first)}"
