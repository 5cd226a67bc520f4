"""``trionsq log``: the commands of nsq_log under another name, and their JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.operate.stage import Stub, run_command
from tests.storage.log.log_samples import HEADER, simple_batch
from tests.tools.test_nsq_log import TOPIC, Written, put_state
from trionsq.storage.log.rows import AddTopic
from trionsq.tools import nsq_log

FIVE = [simple_batch([b"%d-%d" % (record, place) for place in range(4)]) for record in range(5)]


@pytest.fixture
def segment(tmp_path: Path) -> Written:
    """A data path with one segment of topic t."""
    written = Written(tmp_path, HEADER, FIVE)
    put_state(tmp_path, AddTopic(TOPIC))
    return written


@pytest.mark.parametrize(
    "words", [["verify"], ["stat"], ["cat", "--topic=t", "--count=3", "--format=raw"]], ids=str
)
def test_both_names_print_the_same(
    words: list[str], segment: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    """To standard output, with the same exit code."""
    folder = str(segment.path.parent)
    ended = run_command(capsys, "log", *words, folder)
    code = nsq_log.main([*words, folder])
    assert (ended.code, ended.out) == (code, capsys.readouterr().out)
    assert ended.out


def test_damage_as_json(segment: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """verify counts, and names the file of each finding; the exit code is 1."""
    segment.flip(segment.offsets[2] + 3)
    ended = run_command(capsys, "log", "verify", "--json", str(segment.path.parent))
    assert ended.code == 1
    document = ended.document
    assert (document["segments"], document["damage"]) == (1, 1)
    assert [one["file"] for one in document["findings"]] == [segment.name]
    assert "sequences 1008 to 1011" in document["findings"][0]["text"]


def test_counts_as_json(segment: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """stat has a row for each topic."""
    ended = run_command(capsys, "log", "stat", "--json", str(segment.path.parent))
    (row,) = ended.document["topics"]
    assert (row["topic"], row["messages"], row["first"], row["last"]) == ("t", 20, 1000, 1019)
    assert row["channels"] == []


def test_what_can_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and a line that begins with the name of the command; --json has it, too."""
    ended = run_command(capsys, "log", "verify", str(tmp_path / "missing"))
    assert ended.code == 2
    assert ended.err.startswith("trionsq log: ")
    ended = run_command(capsys, "log", "verify", "--json", str(tmp_path / "missing"))
    assert ended.code == 2
    (remark,) = ended.document["remarks"]
    assert ended.err == f"trionsq log: {remark}\n"


def test_ctrl_c_does_not_say_that_nothing_was_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restore that is interrupted may have copied files: one line, and 130."""

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(nsq_log, "run", interrupted)
    ended = run_command(capsys, "log", "restore", "backup", "data")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.strip() == "trionsq: interrupted"


@pytest.mark.parametrize("body", [b"<html>", {"path": "p"}, []], ids=["html", "keys", "list"])
def test_a_backup_that_is_answered_with_nonsense(
    body: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another server listens there: one line and exit code 2, no traceback."""
    with Stub({"/log/backup": (200, body)}) as stub:
        flag = f"--nsqd-http-address={stub.address}"
        ended = run_command(capsys, "log", "backup", flag, "monday")
    assert ended.code == 2
    assert ended.err == f"trionsq log: {stub.address}: this is no answer of nsqd's /log/backup\n"
