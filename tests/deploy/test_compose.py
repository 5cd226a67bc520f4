"""deploy/compose.yaml: of the right form, and true to the programs that it starts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipelines.__main__ import make_parser
from tests.deploy.commands import DAEMONS, options
from tests.deploy.topology import COMPOSE_FILE, DEPLOY, Service, broker_services, compose, services

SCHEMA = Path(__file__).parent / "schema" / "compose-spec.json"
PORT_OF = {"nsqd": 4151, "nsqlookupd": 4161, "nsqadmin": 4171}
BROKER = broker_services()


def validator() -> jsonschema.Draft7Validator:
    """By the published schema, which names its draft with https: so the draft is ours to say."""
    return jsonschema.Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def of_program(program: str) -> list[Service]:
    """The services that run it."""
    return [service for service in BROKER.values() if service.command[0] == program]


def test_it_is_of_the_compose_specification() -> None:
    """The published schema takes it."""
    validator().validate(compose())


def test_the_schema_refuses_what_is_wrong() -> None:
    """The check can fail: an unknown key of a service is refused."""
    content = compose()
    content["services"]["nsqd-1"]["stop_grace"] = "90s"
    with pytest.raises(jsonschema.ValidationError, match="stop_grace"):
        validator().validate(content)


def test_the_compose_client_takes_it() -> None:
    """Where `docker compose` is at hand, it reads the file with all profiles, and TLS beside it."""
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("no `docker compose` here")
    files = ["-f", str(COMPOSE_FILE), "-f", str(DEPLOY / "compose.tls.yaml")]
    command = [docker, "compose", *files, "--profile", "*", "config", "--quiet"]
    subprocess.run(command, check=True, timeout=30)


def test_the_broker_runs_without_the_rest() -> None:
    """Without a profile there are two nsqlookupd, three nsqd and nsqadmin, and no more."""
    assert {name: len(of_program(name)) for name in DAEMONS} == {
        "nsqlookupd": 2,
        "nsqd": 3,
        "nsqadmin": 1,
    }
    assert len(BROKER) == 6
    profiles = {name: service.profiles for name, service in services().items()}
    assert {name for name, found in profiles.items() if found == ("monitoring",)} == {
        "prometheus",
        "grafana",
    }
    assert {name for name, found in profiles.items() if found == ("spark",)} == {
        "spark-master",
        "spark-worker-1",
        "spark-worker-2",
        "archive",
    }


@pytest.mark.parametrize("name", sorted(BROKER))
def test_the_daemons_take_their_command_lines(name: str) -> None:
    """Every flag and every key of the mounted config file is an option of the daemon."""
    service = BROKER[name]
    found = options(service.command)
    program = service.command[0]
    assert found.http_address.endswith(f":{PORT_OF[program]}")
    assert service.healthcheck == ("nsq-ready", f"http://127.0.0.1:{PORT_OF[program]}/ready")
    if program != "nsqadmin":
        assert found.broadcast_address == name
        assert compose()["services"][name]["hostname"] == name


def test_the_daemons_find_each_other() -> None:
    """All nsqd register at both nsqlookupd; nsqadmin and the pipeline ask both."""
    lookups = {service.name for service in of_program("nsqlookupd")}
    for nsqd in of_program("nsqd"):
        told = options(nsqd.command).lookupd_tcp_address
        assert set(told) == {f"{name}:4160" for name in lookups}
    http = {f"{name}:4161" for name in lookups}
    (admin,) = of_program("nsqadmin")
    assert set(options(admin.command).lookupd_http_address) == http
    job = services()["archive"].command
    assert job[:3] == ("python", "-m", "pipelines")
    arguments = make_parser().parse_args(job[3:])
    assert set(arguments.lookupd_http_address) == http
    assert arguments.checkpoint.startswith("/data/")
    assert arguments.output.startswith("/data/")
    assert arguments.master == services()["spark-worker-1"].command[-1]


def test_each_nsqd_has_its_own_volume_and_number() -> None:
    """No two write the same folder or make the same message ids."""
    nsqds = of_program("nsqd")
    assert {nsqd.mounts["/data"] for nsqd in nsqds} == {nsqd.name for nsqd in nsqds}
    assert {options(nsqd.command).data_path for nsqd in nsqds} == {"/data"}
    assert len({options(nsqd.command).node_id for nsqd in nsqds}) == len(nsqds)
    assert set(compose()["volumes"]) >= {nsqd.name for nsqd in nsqds}


def test_ports_of_the_host_do_not_collide() -> None:
    """Each is given once, and for this machine only unless somebody says otherwise."""
    published = [
        line.split(":") for told in compose()["services"].values() for line in told.get("ports", ())
    ]
    assert {host for host, _, _ in published} == {"127.0.0.1"}
    outside = [port for _, port, _ in published]
    assert len(outside) == len(set(outside))
    inside = [int(port) for _, _, port in published]
    assert sorted(inside)[:2] == [3000, 4150]
    assert inside.count(4150) == inside.count(4151) == 3


def test_a_stop_waits_for_what_nsqd_saves() -> None:
    """Nobody kills an nsqd within the minute that it may need to save."""
    for nsqd in of_program("nsqd"):
        grace = compose()["services"][nsqd.name]["stop_grace_period"]
        assert int(grace.removesuffix("s")) > 60


def test_every_container_is_locked_down() -> None:
    """Read-only root file system, no capabilities, no new privileges: all of them."""
    for name, told in compose()["services"].items():
        assert told["read_only"] is True, name
        assert told["cap_drop"] == ["ALL"], name
        assert told["security_opt"] == ["no-new-privileges:true"], name
        assert told["restart"] == "unless-stopped", name


def test_java_starts_where_everything_else_is_read_only() -> None:
    """Spark's only tmpfs is /tmp, with exec; workers write below it.

    Docker's own choice is noexec; and a folder that the image lacks is root's alone at the second
    start of a container, whatever mode is given.
    """
    spark = [service for service in services().values() if "spark" in service.profiles]
    assert len(spark) == 4
    for service in spark:
        (told,) = compose()["services"][service.name]["tmpfs"]
        folder, _, flags = told.partition(":")
        assert folder == "/tmp"
        assert "exec" in flags.split(",")
        if "--work-dir" in service.command:
            at = service.command.index("--work-dir") + 1
            assert service.command[at].startswith("/tmp/")


def test_tls_is_what_the_example_says() -> None:
    """The commented lines of nsqd.toml are options; the overlay mounts the files that they name."""
    text = (DEPLOY / "config" / "nsqd.toml").read_text(encoding="utf-8")
    told = tomllib.loads("\n".join(re.findall(r"(?m)^# (tls_\w+ = .*)$", text)))
    words = [f"--{key.replace('_', '-')}={value}" for key, value in told.items()]
    found = options([*BROKER["nsqd-1"].command, *words])
    assert found.tls_required == "tcp-https"
    overlay = yaml.safe_load((DEPLOY / "compose.tls.yaml").read_text(encoding="utf-8"))
    validator().validate(overlay)
    assert set(overlay["services"]) == {nsqd.name for nsqd in of_program("nsqd")}
    for service in overlay["services"].values():
        ((_, folder, access),) = (line.split(":") for line in service["volumes"])
        assert access == "ro"
        assert {str(Path(path).parent) for path in (found.tls_cert, found.tls_key)} == {folder}


def test_no_container_takes_all_memory() -> None:
    """Each daemon of the broker has a limit."""
    assert all("mem_limit" in compose()["services"][name] for name in BROKER)


def test_what_is_mounted_is_there() -> None:
    """Paths beside the file exist, but for the secrets; volumes are declared."""
    declared = set(compose()["volumes"])
    for service in services().values():
        for source in service.mounts.values():
            if source == "./secrets":
                continue
            assert (DEPLOY / source).is_dir() if source.startswith("./") else source in declared


def test_the_example_of_variables_is_complete() -> None:
    """.env.example has each variable of the file, with its default."""
    text = COMPOSE_FILE.read_text(encoding="utf-8")
    used = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", text))
    assert text.count("${") == len(re.findall(r"\$\{[A-Z_]+:-[^}]*\}", text))
    example = (DEPLOY / ".env.example").read_text(encoding="utf-8")
    assert dict(re.findall(r"(?m)^#([A-Z_]+)=(.*)$", example)) == used
