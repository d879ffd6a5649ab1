"""The alert rules of docs/monitoring are rules that Prometheus takes, and fire when they should.

tests/server/monitoring/test_alert_rules.py checks that a hub exports what they ask for.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from support.containers.recipes import recipe
from support.needed import lacking
from support.service.promtool import find

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docs" / "monitoring"


@pytest.fixture(scope="module")
def promtool() -> str:
    found = find()
    if found is None:
        lacking("there is no promtool (Debian's package prometheus) on this machine")
    return found


def run(promtool: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [promtool, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def check_configuration(promtool: str, text: str, folder: Path) -> None:
    assert "/etc/prometheus/deltahub.token" in text
    (folder / "token").write_text("a secret of the scraper")
    shutil.copy(MONITORING / "alerts.yml", folder)
    (folder / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/deltahub.token", str(folder / "token"))
    )
    done = run(promtool, "check", "config", folder / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_configuration(promtool: str, tmp_path: Path) -> None:
    configuration = recipe("prometheus.yml")
    check_configuration(promtool, configuration, tmp_path)
    assert "job_name: deltahub" in configuration  # as the rule for a hub that is down has it


def test_prometheus_takes_the_configuration_with_workers(promtool: str, tmp_path: Path) -> None:
    workers = recipe("prometheus-workers.yml")
    both = recipe("prometheus.yml").replace("rule_files:", f"{workers}rule_files:")
    check_configuration(promtool, both, tmp_path)
    assert "job_name: deltahub-workers" in workers  # as the rule for a worker that is down has it


def test_prometheus_takes_the_configuration_of_the_compose_file(
    promtool: str, tmp_path: Path
) -> None:
    document = yaml.safe_load((ROOT / "docker-compose.scale.yml").read_text())
    configuration = document["configs"]["prometheus"]["content"]
    check_configuration(promtool, configuration, tmp_path)
    workers = {
        name
        for name, service in document["services"].items()
        if service.get("command", [])[:2] == ["deltahub", "worker"]
    }
    jobs = {each["job_name"]: each for each in yaml.safe_load(configuration)["scrape_configs"]}
    (found,) = jobs["deltahub-workers"]["dns_sd_configs"]
    assert set(found["names"]) == workers
    for name in workers:
        address = document["services"][name]["environment"]["DELTAHUB_WORKER_METRICS_ADDRESS"]
        assert address == f"0.0.0.0:{found['port']}"
        assert f"'127.0.0.1', {found['port']}" in str(document["services"][name]["healthcheck"])


def test_prometheus_takes_the_rules(promtool: str) -> None:
    done = run(promtool, "check", "rules", MONITORING / "alerts.yml")
    assert done.returncode == 0, done.stderr
    assert "rules found" in done.stdout


def test_the_alerts_fire_when_they_should_and_else_not(promtool: str) -> None:
    done = run(promtool, "test", "rules", MONITORING / "alerts_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_with_another_limit_does_not_pass(promtool: str, tmp_path: Path) -> None:
    shutil.copy(MONITORING / "alerts_test.yml", tmp_path)
    rules = (MONITORING / "alerts.yml").read_text()
    assert "0.1 * deltahub_disk_size_bytes" in rules
    (tmp_path / "alerts.yml").write_text(
        rules.replace("0.1 * deltahub_disk_size_bytes", "0.01 * deltahub_disk_size_bytes")
    )
    done = run(promtool, "test", "rules", tmp_path / "alerts_test.yml")
    assert "DeltaHubDiskNearlyFull" in done.stdout + done.stderr
    assert done.returncode != 0
