"""Alert rules, scrape jobs and the dashboard use metrics that the daemons have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.commands import job_arguments
from tests.deploy.topology import DEPLOY, broker_services, services
from tests.processes import running_nsqd, running_nsqlookupd
from trionsq import httpget

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
ALERTS_TEST = DEPLOY / "prometheus" / "alerts_test.yml"
SCRAPES = DEPLOY / "prometheus" / "prometheus.yml"
BOARD = DEPLOY / "grafana" / "dashboards" / "nsq.json"
ROOT = DEPLOY.parent

_METRIC = re.compile(r"\b(?:nsqd|nsqlookupd|nsqadmin|process)_[a-z_]+\b")


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    """The panels of the board that show something."""
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def metrics_in(expressions: list[str]) -> set[str]:
    """The names of our figures in them, those of histograms without their ending."""
    bare = [re.sub(r'"[^"]*"', "", text) for text in expressions]
    names = {name for text in bare for name in _METRIC.findall(text)}
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


async def test_rules_and_board_ask_for_figures_that_are_there(tmp_path: Path) -> None:
    """Each name is in /metrics of a running nsqd or nsqlookupd."""
    asked = metrics_in([rule["expr"] for rule in rules()])
    assert len(asked) > 8
    variables = json.loads(BOARD.read_text(encoding="utf-8"))["templating"]["list"]
    shown = metrics_in(
        [target["expr"] for panel in panels() for target in panel["targets"]]
        + [variable["query"]["query"] for variable in variables]
    )
    assert len(shown) > 15
    there: set[str] = set()
    async with running_nsqlookupd() as lookupd:
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        async with running_nsqd(tmp_path, flags) as nsqd:
            await httpget.post(f"http://{nsqd.http_address}/channel/create?topic=t&channel=c", b"")
            for daemon in (nsqd, lookupd):
                answer = await httpget.get(f"http://{daemon.http_address}/metrics")
                text = answer.body.decode()
                there |= set(re.findall(r"(?m)^# TYPE (\S+) ", text))
    assert asked | shown <= there


def test_the_rules_are_those_of_the_documentation() -> None:
    """docs/metrics.md has the same rules, by name, expression and time."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(groups:.*?)```", text, re.DOTALL)
    told = yaml.safe_load(block)["groups"][0]["rules"]
    ours = [{key: rule[key] for key in ("alert", "expr", "for") if key in rule} for rule in rules()]
    assert ours[: len(told)] == told


def test_every_rule_says_how_bad_it_is_and_where() -> None:
    """Each rule has a severity, and a summary with the instance."""
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]


def test_all_daemons_are_scraped() -> None:
    """Each daemon is scraped at its HTTP port, in the job with its name; the archive at its own."""
    jobs = yaml.safe_load(SCRAPES.read_text(encoding="utf-8"))["scrape_configs"]
    scraped = {
        (job["job_name"], target)
        for job in jobs
        for static in job["static_configs"]
        for target in static["targets"]
    }
    ports = {"nsqd": 4151, "nsqlookupd": 4161, "nsqadmin": 4171}
    _, port = job_arguments(services()["archive"].command).metrics_address
    assert scraped == {("pipelines", f"archive:{port}")} | {
        (service.command[0], f"{name}:{ports[service.command[0]]}")
        for name, service in broker_services().items()
    }


def test_promtool_takes_the_files() -> None:
    """If promtool is installed, it accepts rules and configuration."""
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("no promtool here")
    subprocess.run([promtool, "check", "rules", str(ALERTS)], check=True, timeout=30)
    subprocess.run(
        [promtool, "check", "config", "--syntax-only", str(SCRAPES)], check=True, timeout=30
    )
    subprocess.run([promtool, "test", "rules", str(ALERTS_TEST)], check=True, timeout=60)


def test_every_rule_is_tested() -> None:
    """promtool's tests make each rule fire, and name no other."""
    content = yaml.safe_load(ALERTS_TEST.read_text(encoding="utf-8"))
    assert content["rule_files"] == [ALERTS.name]
    cases = [case for test in content["tests"] for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in rules()}
    assert {case["alertname"] for case in cases} == names
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names


def test_the_board_is_laid_out() -> None:
    """Panels have unique ids, do not overlap, and use the provisioned data source."""
    sources = DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(sources.read_text(encoding="utf-8"))["datasources"]
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["datasource"]["uid"] == source["uid"]
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
