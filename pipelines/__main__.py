"""``python -m pipelines NAME ...`` runs a job of `pipelines.jobs`.

Or with spark-submit: ``spark-submit .../pipelines/__main__.py NAME ...``
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from pipelines.errors import FolderError, SetupError, StoreError, UsageError
from pipelines.jobs import archive, compact, counts, deadletter, enrich, mirror, receive, replay
from pipelines.jobs.job import Job, stop_on_signals
from pipelines.jobs.terminal import one_line, print_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JOBS", "main", "make_parser"]

JOBS: Final = {
    job.NAME: job for job in (archive, compact, counts, deadletter, receive, replay, enrich, mirror)
}

# They log exceptions that pyspark raises as well.
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_NOTES: Final = """\
SIGTERM and Ctrl-C stop a job after the current microbatch. Started again with the same
--checkpoint, the job continues from there. Exit codes: 0 after the end or a signal; 1 after a
failure, which is printed in one line; 2 for wrong flags.
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line, with a subcommand for each job."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines",
        description="Ready-made Spark jobs for NSQ topics.",
        epilog="python -m pipelines NAME --help has the flags and an example.",
    )
    names = parser.add_subparsers(metavar="NAME", required=True, dest="name")
    for name, job in JOBS.items():
        subparser = names.add_parser(
            name,
            help=job.HELP,
            description=(job.__doc__ or "").partition(": ")[2],
            epilog=f"example:\n\n{job.EXAMPLE}\n{getattr(job, 'NOTES', _NOTES)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        job.add_arguments(subparser)
        subparser.set_defaults(parser=subparser)
    return parser


def main(argv: Sequence[str] | None = None, session: SparkSession | None = None) -> int:
    """Run a job and return its exit code.

    Args:
        argv: the arguments without the program's name; by default the process's.
        session: a running session, which is left running.

    Raises:
        SystemExit: 0 after --help, 2 after wrong flags.
    """
    arguments = make_parser().parse_args(argv)
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
        except (SetupError, FolderError, StoreError) as error:
            return _failed(job, str(error))
        except Exception as error:
            if job.stopping.is_set():
                print_line(job.name, f"while stopping: {one_line(error)}")
                return 0
            if not _is_expected(error):
                raise
            return _failed(job, one_line(error))
        finally:
            job.close()
    return 0


def _is_expected(error: Exception) -> bool:
    """Whether Spark or this package raised it on purpose; other exceptions are defects."""
    module = type(error).__module__.partition(".")[0]
    return module in ("pyspark", "py4j", "pipelines") or isinstance(error, OSError)


def _failed(job: Job, reason: str) -> int:
    print_line(job.name, reason)
    return 1


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
