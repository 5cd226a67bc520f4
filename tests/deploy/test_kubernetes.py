"""deploy/kubernetes matches Kubernetes' schemas and the programs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pipelines.jobs.job import BATCH_LIMIT_S
from pipelines.jobs.receive import config_of
from pipelines.receiver.config import Share
from tests.deploy.commands import CONFIG_FOLDER, job_arguments, options
from tests.deploy.topology import DEPLOY
from trionsq.tools.nsq_drain import parse_arguments

FOLDER = DEPLOY / "kubernetes"
MANIFESTS = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
OLDEST = "1.30"
PROGRAMS = {"nsqd": 4151, "nsqlookupd": 4161, "nsqadmin": 4171}


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every object, and where it is written."""
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path, document


def found(kind: str, name: str) -> dict[str, Any]:
    """An object by its kind and name."""
    (document,) = (
        document
        for _, document in documents()
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    )
    return document


def pod(name: str) -> dict[str, Any]:
    """What the pods of a daemon are made by."""
    kind = "Deployment" if name == "nsqadmin" else "StatefulSet"
    template: dict[str, Any] = found(kind, name)["spec"]["template"]["spec"]
    return template


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_the_manifests_are_of_the_schemas(version: str) -> None:
    """The manifests match the schemas strictly: an unknown key is an error."""
    for path, document in documents():
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise AssertionError(f"{path.name}: {error}") from error


def test_the_schemas_refuse_what_is_wrong() -> None:
    """The check can fail: a misspelt probe is an error."""
    document = found("StatefulSet", "nsqd")
    container = document["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, OLDEST, strict=True)


def test_kustomize_joins_them() -> None:
    """If kubectl is installed, kustomize puts all into one namespace, with the config map."""
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("no kubectl here")
    text = subprocess.run(
        [kubectl, "kustomize", str(FOLDER)], check=True, capture_output=True, timeout=60
    ).stdout
    made = list(yaml.safe_load_all(text))
    for document in made:
        kubernetes_validate.validate(document, OLDEST, strict=True)
    (config,) = (document for document in made if document["kind"] == "ConfigMap")
    assert set(config["data"]) == {f"{name}.toml" for name in PROGRAMS}
    (nsqd,) = (
        document
        for document in made
        if document["kind"] == "StatefulSet" and document["metadata"]["name"] == "nsqd"
    )
    volumes = nsqd["spec"]["template"]["spec"]["volumes"]
    assert {"name": "config", "configMap": {"name": config["metadata"]["name"]}} in volumes
    spaces = {document["metadata"].get("namespace", "nsq") for document in made}
    assert spaces == {"nsq"}


@pytest.mark.parametrize(("name", "port"), PROGRAMS.items())
def test_the_daemons_take_their_arguments(name: str, port: int) -> None:
    """Every flag is an option; the ports of containers, probes and services match."""
    (container,) = pod(name)["containers"]
    values = {"POD_NAME": f"{name}-0", "POD_NAMESPACE": "nsq", "POD_INDEX": "0"}
    declared = {variable["name"] for variable in container.get("env", ())}
    words = list(container["args"])
    for variable in declared:
        words = [word.replace(f"$({variable})", values[variable]) for word in words]
    assert not [word for word in words if "$(" in word]
    given = options(words)
    assert given.http_address.endswith(f":{port}")
    ports = {told["name"]: told["containerPort"] for told in container["ports"]}
    assert ports["http"] == port
    for probe, path in (("startup", "/live"), ("liveness", "/live"), ("readiness", "/ready")):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}
    served = {told["name"]: told["port"] for told in found("Service", name)["spec"]["ports"]}
    assert served == ports
    mounted = {told["mountPath"] for told in container["volumeMounts"]}
    assert CONFIG_FOLDER in mounted
    if name != "nsqadmin":
        assert given.broadcast_address == f"{name}-0.{name}.nsq.svc.cluster.local"


def test_the_names_of_nsqlookupd_are_those_of_its_pods() -> None:
    """There is a name for each replica, in the headless service."""
    replicas = found("StatefulSet", "nsqlookupd")["spec"]["replicas"]
    names = [f"nsqlookupd-{number}.nsqlookupd" for number in range(replicas)]
    words = [word for word in pod("nsqd")["containers"][0]["args"] if "lookupd-tcp" in word]
    assert [word.partition("=")[2] for word in words] == [
        f"{name}.$(POD_NAMESPACE).svc.cluster.local:4160" for name in names
    ]
    words = [word for word in pod("nsqadmin")["containers"][0]["args"] if "lookupd-http" in word]
    assert [word.partition("=")[2] for word in words] == [f"{name}:4161" for name in names]
    assert found("Service", "nsqlookupd")["spec"]["clusterIP"] == "None"


def test_a_stop_waits_for_the_drain_and_what_nsqd_saves() -> None:
    """The grace period is that of the drain and the minute of saving together."""
    template = pod("nsqd")
    words = template["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert words[0] == "nsq-drain"
    drain = parse_arguments(words[1:])
    assert drain.stay
    assert template["terminationGracePeriodSeconds"] >= drain.delay + drain.limit + 90


@pytest.mark.parametrize("name", ["nsqd", "nsqlookupd"])
def test_one_node_at_a_time_is_taken_away(name: str) -> None:
    """A drain of machines removes one node at a time."""
    assert found("PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1


def test_services_and_budgets_find_their_pods() -> None:
    """Their selectors match the pods of one daemon."""
    workloads = [document for _, document in documents() if "template" in document.get("spec", {})]
    labels = [told["spec"]["template"]["metadata"]["labels"] for told in workloads]
    for told in workloads:
        wanted = told["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= told["spec"]["template"]["metadata"]["labels"].items()
    for _, document in documents():
        if document["kind"] in ("Service", "PodDisruptionBudget"):
            selector = document["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            assert sum(wanted.items() <= of_pod.items() for of_pod in labels) == 1, document


def test_the_pipeline_takes_its_arguments() -> None:
    """Its flags are the job's, its state is on the volume, and a stop waits for its microbatch."""
    template = pod("archive")
    (container,) = template["containers"]
    arguments = job_arguments(container["args"])
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert arguments.checkpoint in mounts
    assert "/tmp" in mounts
    (port,) = container["ports"]
    assert arguments.metrics_address == ("0.0.0.0", port["containerPort"])
    assert template["terminationGracePeriodSeconds"] > BATCH_LIMIT_S + 30
    assert found("StatefulSet", "archive")["spec"]["replicas"] == 1


def test_the_receivers_take_their_arguments() -> None:
    """Each pod has a log of its own and its part of the nsqds, and a stop waits for what it has."""
    template = pod("receivers")
    (container,) = template["containers"]
    replicas = found("StatefulSet", "receivers")["spec"]["replicas"]
    declared = {variable["name"] for variable in container["env"]}
    configs = []
    for number in range(replicas):
        values = {"POD_NAME": f"receivers-{number}", "POD_INDEX": str(number)}
        assert declared == set(values)
        words = list(container["args"])
        for variable, value in values.items():
            words = [word.replace(f"$({variable})", value) for word in words]
        configs.append(config_of(job_arguments(words)))
    assert [config.name for config in configs] == ["receivers-0", "receivers-1"]
    assert [config.receiver.nsqd_share for config in configs] == [Share(0, 2), Share(1, 2)]
    limit_s = max(config.receiver.stop_timeout_s for config in configs)
    assert template["terminationGracePeriodSeconds"] > limit_s + 10


@pytest.mark.parametrize("name", [*PROGRAMS, "archive", "receivers"])
def test_every_pod_is_locked_down(name: str) -> None:
    """Pods meet the restricted policy, and have a read-only root file system."""
    template = pod(name)
    assert template["securityContext"]["runAsNonRoot"] is True
    context = template["containers"][0]["securityContext"]
    assert context == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_network_policies_are_of_our_pods_and_ports() -> None:
    """Each port of a daemon is opened by its name."""
    policies = {
        document["metadata"]["name"]: document["spec"]
        for _, document in documents()
        if document["kind"] == "NetworkPolicy"
    }
    assert set(policies) == set(PROGRAMS)
    for name, policy in policies.items():
        kind = "Deployment" if name == "nsqadmin" else "StatefulSet"
        labels = found(kind, name)["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        assert opened == {port["name"] for port in pod(name)["containers"][0]["ports"]}
        assert all(rule["from"] for rule in policy["ingress"])


def test_scaling_is_kept_by_the_next_apply() -> None:
    """The kustomization has the count of nsqd, and overrides the manifest."""
    content = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
    (told,) = content["replicas"]
    assert told["name"] == "nsqd"
    assert told["count"] == found("StatefulSet", "nsqd")["spec"]["replicas"]


def test_a_certificate_is_mounted_once_it_is_there() -> None:
    """Pods start without the secret; with it the files are where nsqd.toml looks for them."""
    (mount,) = (
        told for told in pod("nsqd")["containers"][0]["volumeMounts"] if told["name"] == "tls"
    )
    (volume,) = (told for told in pod("nsqd")["volumes"] if told["name"] == "tls")
    assert volume["secret"]["optional"] is True
    config = (DEPLOY / "config" / "nsqd.toml").read_text(encoding="utf-8")
    for name in ("tls.crt", "tls.key"):
        assert f'"{mount["mountPath"]}/{name}"' in config


def test_one_nsqlookupd_knows_all_nsqd_during_an_upgrade() -> None:
    """The second goes when each nsqd has had the time to ping the first twice, each 15 s."""
    assert found("StatefulSet", "nsqlookupd")["spec"]["minReadySeconds"] > 30
