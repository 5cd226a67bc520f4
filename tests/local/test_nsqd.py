"""The command nsqd up to the start of the broker: exit codes, streams and priorities."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trionsq.broker.options import NsqdOptions
from trionsq.daemon.command import read_options


def nsqd(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "trionsq.local.nsqd", *words],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_version_is_printed_before_the_config_is_read() -> None:
    """--version answers with the line that scripts match, even with a config file amiss."""
    done = nsqd("--config=/nonexistent", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "nsqd v1.3.0 (built w/go1.19.8)\n"


def test_help_is_no_error() -> None:
    """--help shows the usage and exits with 0."""
    done = nsqd("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage of nsqd:\n")


def test_a_usage_error_exits_with_2() -> None:
    """A bad flag: message and usage on stderr, nothing on stdout, exit 2."""
    done = nsqd("--msg-timeout=60")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('invalid value "60" for flag -msg-timeout')
    assert "Usage of nsqd:\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--node-id=1024"], "failed to instantiate nsqd - --node-id must be [0,1024)"),
        (
            ["--config=/nonexistent"],
            "failed to load config file /nonexistent - No such file or directory",
        ),
        (["--e2e-processing-latency-percentile=abc"], "Could not parse: abc"),
    ],
)
def test_a_start_error_is_one_fatal_line(words: list[str], text: str) -> None:
    """What keeps nsqd from starting is one FATAL line on stderr, and exit 1."""
    done = nsqd(*words)
    assert (done.returncode, done.stdout) == (1, "")
    line = rf"\[nsqd\] [\d/]{{10}} [\d:.]{{15}} FATAL: {re.escape(text)}\n"
    assert re.fullmatch(line, done.stderr)


def test_a_certificate_that_cannot_be_read_is_one_fatal_line(tmp_path: Path) -> None:
    """It names the file; nothing listens."""
    done = nsqd(f"--data-path={tmp_path}", f"--tls-cert={tmp_path}/c.pem", "--tls-key=k.pem")
    assert done.returncode == 1
    assert re.fullmatch(
        rf"\S+ \S+ \S+ FATAL: failed to instantiate nsqd - failed to build TLS config - "
        rf"open {tmp_path}/c\.pem: no such file or directory\n",
        done.stderr,
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("mem_queue_size = 'x'", "failed to load config file {path} - mem_queue_size: parse error"),
        ("mem_queue_size = -1", "failed to instantiate nsqd - --mem-queue-size must be >= 0"),
    ],
)
def test_a_bad_value_in_the_file_is_one_fatal_line(tmp_path: Path, content: str, text: str) -> None:
    """A value of the wrong kind or out of range: one line that names the key, and exit 1."""
    config = tmp_path / "nsqd.cfg"
    config.write_text(content)
    done = nsqd(f"--config={config}")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"\S+ \S+ \S+ FATAL: {re.escape(text.format(path=config))}\n", done.stderr)


def test_what_has_no_effect_is_said_in_the_log(tmp_path: Path) -> None:
    """A key that is unknown gets a line of warning."""
    config = tmp_path / "nsqd.cfg"
    config.write_text(f"nope = 1\ndata_path = '{tmp_path}/none'\n")
    done = nsqd(f"--config={config}")
    assert done.returncode == 1  # there is no such data path
    assert re.findall(r"WARNING: (.*)", done.stderr) == [
        f"ignored unknown key in config file {config}: nope",
    ]


def test_flags_outrank_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    """Flag, then config file, then default; a list on the command line replaces the file's."""
    config = tmp_path / "nsqd.cfg"
    config.write_text(
        'msg_timeout = "5s"\nmem_queue_size = 7\nnsqlookupd_tcp_addresses = ["a:1", "b:2"]\n'
    )
    words = [f"--config={config}", "--msg-timeout=9s", "--lookupd-tcp-address=c:3"]
    options, warnings = read_options(NsqdOptions, "nsqd", words)
    assert options == NsqdOptions(
        config=str(config),
        msg_timeout_ns=9 * 10**9,
        mem_queue_size=7,
        lookupd_tcp_address=("c:3",),
    )
    assert warnings == []


def test_words_after_the_flags_are_reported() -> None:
    """What is ignored is not ignored in silence."""
    _, warnings = read_options(NsqdOptions, "nsqd", ["--verbose=false", "extra"])
    assert warnings[-1] == "ignored arguments: extra"
