"""`trionsq up`: its flags, and the parts that follow from them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.broker.options import NsqdOptions
from trionsq.daemon import flags
from trionsq.local import main
from trionsq.local.up.options import (
    Addresses,
    Part,
    Ports,
    UpError,
    UpOptions,
    check_nsqd_options,
    plan,
    read_options,
)

KNOWN = {"nsqlookupd": Addresses("127.0.0.1:4160", "127.0.0.1:4161")}


def nsqd_options(part: Part) -> NsqdOptions:
    """The options by which an nsqd of a plan is started."""
    given = flags.parse(NsqdOptions, part.flags(part.ports, KNOWN))
    return NsqdOptions(**given.values)  # type: ignore[arg-type]


def test_the_usual_ports() -> None:
    """One nsqd and the nsqlookupd are where every NSQ program looks for them."""
    lookupd, nsqd, admin = plan(UpOptions())
    assert (lookupd.name, lookupd.ports) == ("nsqlookupd", Ports(4160, 4161))
    assert (nsqd.name, nsqd.ports) == ("nsqd-1", Ports(4150, 4151))
    assert (admin.name, admin.ports) == ("nsqadmin", Ports(0, 4171))
    assert admin.addresses(admin.ports) == Addresses("", "127.0.0.1:4171")


def test_further_nsqds_step_aside() -> None:
    """The sixth nsqd is not put where the nsqlookupd is, nor a later one at nsqadmin's 4171."""
    ports = [part.ports.tcp for part in plan(UpOptions(nsqd=11))[1:-1]]
    assert ports == [4150, 4152, 4154, 4156, 4158, 4162, 4164, 4166, 4168, 4172, 4174]


@given(
    nsqd=st.integers(1, 64), port=st.integers(4100, 4200), lookupd_port=st.sampled_from([0, 4160])
)
def test_no_two_parts_share_anything(nsqd: int, port: int, lookupd_port: int) -> None:
    """Whatever the flags are: ports, names, folders and node ids are different."""
    if abs(port - lookupd_port) < 2:
        return
    if port and 4171 - port in (0, 1):
        return
    parts = plan(UpOptions(nsqd=nsqd, port=port, lookupd_port=lookupd_port))
    numbers = [n for part in parts for n in (part.ports.tcp, part.ports.http) if n]
    assert len(set(numbers)) == len(numbers)
    assert len({part.name for part in parts}) == nsqd + 2
    options = [nsqd_options(part) for part in parts[1:-1]]
    assert len({one.node_id for one in options}) == len({one.data_path for one in options}) == nsqd


def test_an_nsqd_gets_what_the_user_says(tmp_path: Path) -> None:
    """--nsqd-opt and --nsqd-config reach every nsqd; so do --host and the nsqlookupd's address."""
    words = ["--nsqd=2", "--nsqd-opt=mem-queue-size=7", "--nsqd-opt", "requeue-on-disconnect"]
    options = read_options([*words, "--host=127.0.0.2", "--data-path=d"], "trionsq up")
    for number, part in enumerate(plan(options)[1:-1], start=1):
        nsqd = nsqd_options(part)
        assert (nsqd.mem_queue_size, nsqd.requeue_on_disconnect) == (7, True)
        assert nsqd.lookupd_tcp_address == ("127.0.0.1:4160",)
        assert nsqd.tcp_address == f"127.0.0.2:{4148 + 2 * number}"
        assert nsqd.broadcast_address == "127.0.0.2"
        assert nsqd.data_path == f"d/nsqd-{number}"
    [_, part] = plan(UpOptions(nsqd_config="nsqd.cfg", no_admin=True))
    assert nsqd_options(part).config == "nsqd.cfg"


def test_a_host_that_is_everywhere_is_reached_at_home() -> None:
    """With --host=0.0.0.0 our own programs dial 127.0.0.1, others are told the host's name."""
    part = plan(UpOptions(host="0.0.0.0"))[1]
    assert part.addresses(part.ports) == Addresses("127.0.0.1:4150", "127.0.0.1:4151")
    nsqd = nsqd_options(part)
    assert (nsqd.tcp_address, nsqd.broadcast_address) == (
        "0.0.0.0:4150",
        NsqdOptions().broadcast_address,
    )
    part = plan(UpOptions(host="::1"))[1]
    assert part.addresses(part.ports).tcp == nsqd_options(part).tcp_address == "[::1]:4150"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nsqd=0"], "--nsqd must be 1..64"),
        (["--port=65536"], "--port must be 0..65000"),
        (["--admin-port=-1"], "--admin-port must be 0..65000"),
        (["--port=4170"], "--admin-port must be neither --port nor the next one"),
        (["--admin-port=4161"], "--admin-port must be neither --lookupd-port nor the next one"),
        (["--port=4161"], "--port and --lookupd-port must be 2 apart at least"),
        (["--nsqd-opt=data-path=x"], "--nsqd-opt=data-path: set by --data-path"),
        (["--nsqd-opt=foo=1"], "--nsqd-opt: flag provided but not defined: -foo"),
        (["--nsqd-opt=mem-queue-size=x"], "--nsqd-opt: invalid value"),
        (["--nsqd-opt=mem-queue-size"], "--nsqd-opt: flag needs an argument"),
        (["--nsqd-opt=help"], "--nsqd-opt: see nsqd --help"),
        (["--nosuch"], "flag provided but not defined: -nosuch"),
        (["3"], "unexpected argument: 3"),
    ],
)
def test_a_bad_flag_is_one_clear_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, what is wrong, and where the flags are shown; nothing has been started."""
    with pytest.raises(SystemExit) as end:
        main.main(["up", *words])
    assert end.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"trionsq up: {said}")
    assert second == "trionsq up --help shows all flags"


def test_options_that_no_nsqd_takes(tmp_path: Path) -> None:
    """A value out of range or a missing config file is found before anything is started."""
    with pytest.raises(UpError, match="--sync-timeout must be > 0"):
        check_nsqd_options(UpOptions(nsqd_opt=("sync-timeout=0",)))
    with pytest.raises(UpError, match="failed to load config file"):
        check_nsqd_options(UpOptions(nsqd_config=str(tmp_path / "missing")))


def test_a_config_file_of_a_single_nsqd(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be alike for all is left out, and said so."""
    monkeypatch.setattr(logging.getLogger("trionsq"), "propagate", True)
    path = tmp_path / "nsqd.cfg"
    path.write_text('mem_queue_size = 5\ntcp_address = "0.0.0.0:1"\n')
    check_nsqd_options(UpOptions(nsqd_config=str(path)))
    [record] = caplog.records
    assert record.getMessage() == (
        f"{path}: tcp_address is ignored, it is set by --host and --port"
    )


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`trionsq` alone is a usage error, --help shows its commands and `up --help` the flags."""
    assert main.main([]) == 2
    assert main.main(["--help"]) == 0
    assert main.main(["down"]) == 2
    captured = capsys.readouterr()
    assert "  up          Run a local cluster" in captured.out
    assert "No such command 'down'" in captured.err
    with pytest.raises(SystemExit) as end:
        main.main(["up", "--help"])
    assert end.value.code == 0
    assert "--nsqd-opt <string, repeatable>" in capsys.readouterr().out
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trionsq v")
