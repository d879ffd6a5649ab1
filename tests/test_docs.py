"""Whatever a user can set, call or be told is in the documents."""

import json
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from pydantic_settings import BaseSettings

from deltahub.client.cli.commands import group
from deltahub.codecs.registry import BY_ID
from deltahub.registry import failpoints
from deltahub.registry.settings import Settings
from deltahub.server.errors import STATUS_OF
from deltahub.server.settings import ServerSettings
from deltahub.workers.settings import WorkerSettings
from support.containers import compose

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("settings", [Settings, ServerSettings, WorkerSettings])
def test_every_setting_is_described_with_its_default(settings: type[BaseSettings]) -> None:
    page = (DOCS / "settings.md").read_text()
    prefix = settings.model_config["env_prefix"]
    for name, field in settings.model_fields.items():
        default = "" if field.default is None else str(field.default)
        row = rf"\| `{prefix}{name.upper()}` \| {re.escape(default)}( \([^)]*\))? \| \S"
        assert re.search(row, page), f"{prefix}{name.upper()} with default {default!r}"


def test_every_environment_variable_that_the_code_reads_is_described() -> None:
    page = (DOCS / "settings.md").read_text()
    for room in ("client", "registry", "server", "workers"):
        for path in (ROOT / room).rglob("*.py"):
            for name in re.findall(
                r"environ[^\n]*?\"((?:DELTAHUB|HF)_[A-Z_]+)\"", path.read_text()
            ):
                assert f"`{name}`" in page, f"{name}, read in {path.name}"


def test_every_error_code_is_described_with_its_status() -> None:
    page = (DOCS / "errors.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \| \S", page, re.MULTILINE))
    assert rows == {code: str(status) for code, status in STATUS_OF.items()}


def test_every_codec_has_a_page_with_its_number() -> None:
    for codec_id, codec in BY_ID.items():
        page = (ROOT / "codecs" / "spec" / f"{codec_id}.md").read_text()
        assert str(codec.number) in page
        assert re.search(r"\| *version *\|", page.lower())


def test_every_command_and_option_is_described() -> None:
    page = (DOCS / "cli.md").read_text()
    with click.Context(group) as context:
        names = group.list_commands(context)
        assert {point.name for point in entry_points(group="deltahub.commands")} <= set(names)
        for name in names:
            assert f"deltahub {name}" in page
            command = group.get_command(context, name)
            assert command is not None
            for option in command.params:
                if isinstance(option, click.Option) and not option.hidden:
                    assert max(option.opts, key=len) in page, f"{name} {option.opts}"


def test_every_route_is_in_the_snapshot_and_every_walkthrough_names_real_routes() -> None:
    paths = json.loads((DOCS / "openapi.json").read_text())["paths"]
    for named in (
        "uploads/{sha256}",
        "files/query",
        "tensors/query",
        "packs",
        "recipes",
        "commits",
        "files/",
    ):
        assert any(named in path for path in paths), named


def test_every_failpoint_is_where_its_name_says() -> None:
    text = "".join(path.read_text() for path in (ROOT / "registry").rglob("*.py"))
    for name in failpoints.ALL:
        assert text.count(f'"{name}"') >= 2, f"{name} is listed and never reached"


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "codecs" / "spec").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_recipes_with_compose_name_its_services_and_real_options() -> None:
    services = compose.read(ROOT / "docker-compose.yml", {})
    lines = re.findall(
        r"^docker compose (?:run|exec) (.*)$",
        "\n".join((DOCS / name).read_text() for name in ("backup.md", "operations.md")),
        re.MULTILINE,
    )
    n_checked = 0
    for line in lines:
        words = shlex.split(line, comments=True)
        if "deltahub" not in words:
            continue
        at = words.index("deltahub")
        assert words[at - 1] in services, line
        command: click.Command | None = group
        given = words[at + 1 :]
        with click.Context(group) as context:
            while isinstance(command, click.Group) and given and not given[0].startswith("-"):
                command = command.get_command(context, given.pop(0))
        assert command is not None, line
        options = {name for each in command.params for name in each.opts}
        assert {word for word in given if word.startswith("--")} <= options, line
        n_checked += 1
    assert n_checked >= 5


def test_a_hub_of_the_compose_file_without_a_bucket_loses_all_variables_of_s3() -> None:
    hub = compose.read(ROOT / "docker-compose.yml", {})["hub"]
    names = {name for name in hub.values["environment"] if re.match("DELTAHUB_S(3|TORE)_", name)}
    (line,) = re.findall(
        r"^- \*\*Objects in a folder.*$", (DOCS / "operations.md").read_text(), re.M
    )
    assert set(re.findall(r"`(DELTAHUB_\w+)`", line)) == names
