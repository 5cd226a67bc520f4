"""``python -m pipelines NAME ...``: a ready pipeline. See `pipelines.jobs`.

By spark-submit: ``spark-submit .../pipelines/__main__.py NAME ...``
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from pipelines.jobs import archive, compact, counts, deadletter, enrich, mirror, replay
from pipelines.jobs.arguments import UsageError
from pipelines.jobs.failures import one_line
from pipelines.jobs.files import FolderError
from pipelines.jobs.running import Job, stop_on_signals, tell
from pipelines.session import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JOBS", "main", "parser"]

JOBS: Final = {
    one.NAME: one for one in (archive, compact, counts, deadletter, replay, enrich, mirror)
}

# What pyspark logs of an exception that it raises as well
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_NOTES: Final = """\
SIGTERM and Ctrl-C end a job after the batch under way; started again with the same --checkpoint it
goes on where it was. Exit codes: 0 at the end and after a signal; 1 after a line that says what is
wrong; 2 for wrong flags.
"""


def parser() -> argparse.ArgumentParser:
    """Of the command line, with a subcommand for each job."""
    whole = argparse.ArgumentParser(
        prog="python -m pipelines",
        description="Ready Spark pipelines for NSQ topics.",
        epilog="python -m pipelines NAME --help has the flags and an example.",
    )
    names = whole.add_subparsers(metavar="NAME", required=True, dest="name")
    for name, job in JOBS.items():
        one = names.add_parser(
            name,
            help=job.HELP,
            description=(job.__doc__ or "").partition(": ")[2],
            epilog=f"example:\n\n{job.EXAMPLE}\n{_NOTES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        job.add_arguments(one)
        one.set_defaults(parser=one)
    return whole


def main(argv: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run a job and return its exit code.

    Args:
        argv: without the program's name; by default the process's.
        session: a Spark that runs already, and stays.

    Raises:
        SystemExit: 0 after --help, 2 after wrong flags.
    """
    arguments = parser().parse_args(argv)
    job = Job(arguments.name, arguments, session)
    logging.basicConfig(level=logging.WARNING, format=f"{job.name}: %(message)s")
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with stop_on_signals(job.stopping):
        try:
            JOBS[arguments.name].run(job)
        except UsageError as error:
            arguments.parser.error(str(error))
        except KeyboardInterrupt:
            return 0
        except (SetupError, FolderError) as error:
            return _failed(job, str(error))
        except Exception as error:
            if job.stopping.is_set():
                tell(job.name, f"while stopping: {one_line(error)}")
                return 0
            if not _is_of_spark(error):
                raise
            return _failed(job, one_line(error))
        finally:
            job.close()
    return 0


def _is_of_spark(error: Exception) -> bool:
    """What users can see there: Spark's own, and what pipelines raise on purpose."""
    module = type(error).__module__.partition(".")[0]
    return module in ("pyspark", "py4j", "pipelines") or isinstance(error, OSError)


def _failed(job: Job, why: str) -> int:
    tell(job.name, why)
    return 1


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
