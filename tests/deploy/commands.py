"""Command lines of deploy/, parsed by the parsers of their programs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from admin.options import NsqadminOptions
from lookupd.options import NsqlookupdOptions
from pipelines.__main__ import make_parser
from tests.deploy.topology import DEPLOY
from trionsq.broker.options import NsqdOptions, validated
from trionsq.daemon import flags
from trionsq.daemon.command import load_config_file

__all__ = ["CONFIG_FOLDER", "CONFIG_NAMES", "DAEMONS", "job_arguments", "options"]

DAEMONS: Final[Mapping[str, type]] = {
    "nsqd": NsqdOptions,
    "nsqlookupd": NsqlookupdOptions,
    "nsqadmin": NsqadminOptions,
}
CONFIG_FOLDER: Final = "/etc/nsq"
CONFIG_NAMES: Final = {f"{CONFIG_FOLDER}/{name}.toml": name for name in DAEMONS}


def job_arguments(words: Sequence[str]) -> argparse.Namespace:
    """The flags of a pipeline's command line, ``python -m pipelines NAME ...``.

    Raises:
        AssertionError: it is another command.
        SystemExit: a flag is wrong.
    """
    assert [Path(words[0]).name, *words[1:3]] == ["python", "-m", "pipelines"]
    return make_parser().parse_args(words[3:])


def options(words: Sequence[str]) -> Any:
    """The options that a daemon has by its command line and its mounted config file.

    Raises:
        AssertionError: a word or a key that is no option's.
        flags.UsageError, ConfigFileError, OptionsError: a value that is refused.
    """
    program, *rest = words
    given = flags.parse(DAEMONS[program], rest)
    assert not given.warnings, given.warnings
    assert not given.rest, given.rest
    path = str(given.values["config"])
    assert CONFIG_NAMES[path] == program
    content = load_config_file(DAEMONS[program], str(DEPLOY / "config" / Path(path).name))
    assert not content.warnings, content.warnings
    found = DAEMONS[program](**{**content.values, **given.values})
    return validated(found) if program == "nsqd" else found
