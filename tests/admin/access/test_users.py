"""The users file and --add-user."""

from __future__ import annotations

import io
import logging
import os
import stat
from pathlib import Path

import pytest

from admin import cli
from admin.access.guard import open_access
from admin.access.passwords import MAX_PASSWORD_BYTES, Passwords, add_user, hash_password
from admin.access.roles import Role
from admin.access.users import UsersError, UsersFile, parse_users
from admin.options import OptionsError
from tests.admin.access.support import Clock, account, options

ANN = f"ann:viewer:{account('ann', Role.VIEWER).password_hash}"
BOB = f"bob:admin:{account('bob', Role.ADMIN).password_hash}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(ANN + "\n")
    path.chmod(0o600)
    return path


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have standard input say that."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_what_a_users_file_may_have() -> None:
    """Lines of users, remarks and empty lines; roles in any case."""
    users = parse_users(f"# ours\n\n  {ANN}  \n{BOB.replace('admin', 'ADMIN')}\n")
    assert [(one.name, one.role) for one in users.values()] == [
        ("ann", Role.VIEWER),
        ("bob", Role.ADMIN),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ann", "line 2: the role must be viewer, operator or admin"),
        (ANN.replace("viewer", "everyone"), "line 2: the role must be"),
        ("ann:viewer:hunter2", "line 2: it must end with an Argon2 hash, see --add-user"),
        ("ann:viewer:$2b$12$hunter2", "line 2: it must end with an Argon2 hash"),
        (":viewer:x", "line 2: it must start with a user name"),
        (f"{'n' * 65}:viewer:x", "line 2: it must start with a user name"),
        ("a b:viewer:x", "line 2: it must start with a user name"),
        (BOB, "line 2: duplicate user"),
    ],
)
def test_a_wrong_line_is_told_by_its_number(line: str, reason: str) -> None:
    """The reason says which line and why, and nothing that may be a secret."""
    with pytest.raises(UsersError, match=reason) as raised:
        parse_users(f"{BOB}\n{line}\n")
    assert "hunter2" not in str(raised.value)
    assert "$argon2" not in str(raised.value)


def test_a_file_that_has_changed_is_read_again(file: Path) -> None:
    """New users are known a second later, and who is not there any more is not."""
    clock = Clock()
    users = UsersFile(str(file), clock)
    file.write_text(BOB + "\n")
    clock.now_s += 1
    assert users.find("bob") is not None
    assert users.find("ann") is None


@pytest.mark.parametrize("broken", ["ann:viewer", "\udcff", None, "#" * (1 << 20) + "#"])
def test_a_broken_file_changes_nothing(
    file: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Users stay those of before; the log tells once; a file put right counts again."""
    clock = Clock()
    users = UsersFile(str(file), clock)
    if broken is None:
        file.unlink()
    else:
        file.write_bytes(broken.encode(errors="surrogateescape"))
    for _ in range(3):
        clock.now_s += 1
        assert users.find("ann") is not None
    assert caplog.text.count("keeping the previous users") == 1
    file.write_text(BOB + "\n")
    clock.now_s += 1
    assert users.find("bob") is not None


def test_a_file_that_is_broken_at_the_start_ends_it(file: Path, tmp_path: Path) -> None:
    """Nobody finds out later that nobody can sign in."""
    file.write_text("ann")
    with pytest.raises(OptionsError, match=r"failed to read --users-file \(.*users\) - line 1"):
        open_access(options(users_file=str(file)), ["0.0.0.0"], Clock())
    with pytest.raises(OptionsError, match="No such file"):
        open_access(options(users_file=str(tmp_path / "none")), ["0.0.0.0"], Clock())


def test_a_file_that_everybody_can_read_is_told_of(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Hashes are to be guessed at by nobody."""
    UsersFile(str(file), Clock())
    assert "every user of this machine can read" not in caplog.text
    file.chmod(0o644)
    UsersFile(str(file), Clock())
    assert "every user of this machine can read" in caplog.text


async def test_a_user_who_was_added_signs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``nsqadmin --add-user`` makes the file, for its owner only, and its password is right."""
    path = tmp_path / "users"
    for name, password in (("ann", "first"), ("bob", "second"), ("ann", "pässword \U0001f511")):
        say(monkeypatch, f"{password}\n")
        assert cli.main([f"--add-user={name}:operator", f"--users-file={path}"]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().splitlines()) == 2
    assert os.listdir(tmp_path) == ["users"]
    passwords = Passwords(UsersFile(str(path), Clock()), Clock())
    found = await passwords.check("ann", "pässword \U0001f511", "::1")
    assert found is not None
    assert found.role is Role.OPERATOR
    assert await passwords.check("ann", "first", "::1") is None
    assert capsys.readouterr().out == ""


def test_without_a_file_the_line_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line alone, so that it can be put into a file by other means."""
    say(monkeypatch, "secret")
    add_user("ann:Admin", "")
    line = capsys.readouterr().out
    assert line.startswith("ann:admin:$argon2id$")
    assert "ann" in parse_users(line)


@pytest.mark.parametrize(
    ("who", "password", "reason"),
    [
        ("ann", "x", "use viewer, operator or admin"),
        ("ann:boss", "x", "unknown role 'boss'"),
        ("a b:admin", "x", "must be name:role"),
        ("", "x", "must be name:role"),
        ("ann:admin", "", f"a password has 1 to {MAX_PASSWORD_BYTES} bytes"),
        ("ann:admin", "x" * 1025, "a password has 1 to"),
    ],
)
def test_what_is_no_user(
    who: str, password: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name, a role and a password are needed."""
    say(monkeypatch, password)
    with pytest.raises(OptionsError, match=reason):
        add_user(who, "")


def test_a_file_with_a_wrong_line_is_not_touched(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--add-user does not write over what it does not understand; remarks are kept."""
    file.write_text(f"# kept\n{ANN}\n")
    say(monkeypatch, "x")
    add_user("bob:viewer", str(file))
    assert file.read_text().startswith(f"# kept\n{ANN}\nbob:viewer:")
    file.write_text("what\n")
    say(monkeypatch, "x")
    with pytest.raises(OptionsError, match="failed to read"):
        add_user("bob:viewer", str(file))
    assert file.read_text() == "what\n"


def test_a_hash_says_how_it_was_made() -> None:
    """Argon2id with a salt of its own: the same password gives another hash."""
    first, second = hash_password("x"), hash_password("x")
    assert first.startswith("$argon2id$v=19$m=65536,t=3,")
    assert first != second


async def test_without_a_file_there_is_one_admin_for_this_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its password is logged at the start, once, and is the one that is right."""
    caplog.set_level(logging.INFO)
    access = open_access(options(), ["0.0.0.0"], Clock())
    lines = [record.getMessage() for record in caplog.records]
    (password,) = [line.rpartition(" ")[2] for line in lines if "password " in line][:1]
    found = await access.passwords.check("admin", password, "::1")
    assert found is not None
    assert found.role is Role.ADMIN
    assert caplog.text.count(password) == 1
