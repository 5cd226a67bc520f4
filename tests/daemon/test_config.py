"""The config file: every notation of a value, and an error that names the key."""

from pathlib import Path

import pytest

from trionsq.broker.options import NsqdOptions
from trionsq.daemon.command import ConfigFile, ConfigFileError, load_config_file
from trionsq.options import Value, table


def read(tmp_path: Path, content: str) -> ConfigFile:
    """Return what a file of that content sets."""
    path = tmp_path / "nsqd.cfg"
    path.write_text(content)
    return load_config_file(NsqdOptions, str(path))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('msg_timeout = "60s"', {"msg_timeout_ns": 60 * 10**9}),
        ("msg_timeout = 250", {"msg_timeout_ns": 250 * 10**6}),
        ("id = 7", {"node_id": 7}),
        ("mem_queue_size = '5'", {"mem_queue_size": 5}),
        (
            'nsqlookupd_tcp_addresses = ["a:1", "b:2"]',
            {"lookupd_tcp_address": ("a:1", "b:2")},
        ),
        ('nsqlookupd_tcp_addresses = "a:1,b:2"', {"lookupd_tcp_address": ("a:1", "b:2")}),
        ('nsqlookupd_tcp_addresses = ""', {"lookupd_tcp_address": ()}),
        (
            "e2e_processing_latency_percentiles = [0.5, 0.99]",
            {"e2e_processing_latency_percentile": (0.99, 0.5)},
        ),
        ('log_level = "Debug"', {"log_level": "debug"}),
        ("tls_required = true", {"tls_required": "true"}),
        ('tls_required = "tcp-https"', {"tls_required": "tcp-https"}),
        ('tls_min_version = ""', {"tls_min_version": "tls1.0"}),
        ("snappy = false", {"snappy": False}),
    ],
)
def test_values_of_each_kind(tmp_path: Path, line: str, expected: dict[str, Value]) -> None:
    """Durations as text or milliseconds, lists as arrays or text."""
    assert read(tmp_path, line) == ConfigFile(expected, ())


@pytest.mark.parametrize("key", [spec.key for _, spec in table(NsqdOptions) if spec.key])
def test_every_key_is_read(tmp_path: Path, key: str) -> None:
    """No option that has a key is left out."""
    [(name, spec)] = [row for row in table(NsqdOptions) if row[1].key == key]
    written = {"int": "3", "bool": "true", "duration": '"3s"', "numbers, repeatable": "[0.5]"}
    text = {
        "tls_required": '"true"',
        "tls_min_version": '"tls1.2"',
        "log_level": '"warn"',
        "log_format": '"json"',
        "admin_access": '"password"',
        "auth_http_request_method": '"post"',
        "storage": '"log"',
        "durability": '"always"',
        "sigterm": '"drain"',
    }
    value = text.get(key) or written.get(spec.kind.name, '"any"')
    content = read(tmp_path, f"{key} = {value}")
    assert list(content.values) == [name]
    assert content.warnings == ()


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("unknown = 1", ""),
        ("[section]", ""),
        ("node_id = 7", "; the key is id"),
        ("lookupd_tcp_address = 'a:1'", "; the key is nsqlookupd_tcp_addresses"),
        ("mem-queue-size = 7", "; the key is mem_queue_size"),
        ("verbose = true", "; it is available as a flag only"),
        ("config = 'x'", "; it is available as a flag only"),
    ],
)
def test_an_unknown_key_earns_a_warning(tmp_path: Path, line: str, advice: str) -> None:
    """It is ignored, and the operator hears of it and of the key that was probably meant."""
    content = read(tmp_path, f"sync_every = 5\n{line}")
    assert content.values == {"sync_every": 5}
    key = line.split()[0].strip("[]")
    assert content.warnings == (
        f"ignored unknown key in config file {tmp_path}/nsqd.cfg: {key}{advice}",
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("snappy = 0", "snappy: must be true or false"),
        ("msg_timeout = 1.5", "msg_timeout: must be a duration"),
        ("msg_timeout = 99999999999999999", "msg_timeout: value out of range"),
        ("mem_queue_size = true", "mem_queue_size: must be an integer"),
        ("nsqlookupd_tcp_addresses = 1", "nsqlookupd_tcp_addresses: must be a list"),
        ("log_level = 1", "log_level: must be one of"),
        ("log_level", "Expected '='"),
        ('e2e_processing_latency_percentiles = "x"', "Could not parse: x"),
        pytest.param(f"sync_every = {'9' * 5000}", "integer string conversion", id="long"),
        pytest.param(f"sync_every = 0x{'9' * 5000}", "integer string conversion", id="long hex"),
    ],
)
def test_a_bad_value_names_its_key(tmp_path: Path, line: str, reason: str) -> None:
    """A file that cannot be used is an error with the file, the key and the reason."""
    with pytest.raises(ConfigFileError) as raised:
        read(tmp_path, line)
    text = str(raised.value)
    assert text.startswith(f"failed to load config file {tmp_path}/nsqd.cfg - ")
    assert reason in text


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """nsqd does not start on defaults when the file that it was given is not there."""
    with pytest.raises(ConfigFileError, match=r"- No such file or directory$"):
        load_config_file(NsqdOptions, str(tmp_path / "none"))
