"""The command: what it prints, what it refuses, and with which exit status."""

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from deltahub.client import Hub
from deltahub.client.cli.commands import group
from deltahub.client.errors import Forbidden, RepositoryNotFound
from support.models.model_folders import base_tensors, contents, tuned_tensors, write_model
from support.service.client_process import Finished, deltahub
from support.service.hub import RunningHub

DOCS = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
COMMANDS = ("push", "pull", "ls", "info", "rm", "visibility", "login", "whoami")


@pytest.fixture
def run(hub_server: RunningHub, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("DELTAHUB_URL", hub_server.url)
    monkeypatch.setenv("DELTAHUB_TOKEN", hub_server.admin_token)
    return deltahub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", base_tensors())


def ok(run: Finished) -> Finished:
    assert run.status == 0, run.err
    return run


@pytest.mark.usefixtures("run")
def test_a_day_with_the_command(folder: Path, tmp_path: Path, name: str) -> None:
    pushed = ok(deltahub("push", str(folder), name, "-m", "first"))
    assert pushed.out.startswith(f"pushed {name}@main ")
    assert pushed.out.rstrip().endswith("proved")
    assert "hash" in pushed.err
    assert "done in" in pushed.err
    assert "\r" not in pushed.err
    assert "\x1b" not in pushed.err

    again = ok(deltahub("push", str(folder), name, "--json"))
    assert again.json()["changed"] is False
    assert again.err == ""

    tuned = write_model(tmp_path / "tuned", tuned_tensors())
    ok(deltahub("push", str(tuned), f"{name}-tuned@main", "--base", name, "--no-wait"))

    pulled = ok(deltahub("pull", name, "--to", str(tmp_path / "to"), "--sha256"))
    assert pulled.out.strip() == str(tmp_path / "to")
    assert "received" in pulled.err
    assert contents(tmp_path / "to") == contents(folder)

    assert f"{name} " in ok(deltahub("ls", "admin")).out
    listed = ok(deltahub("ls", name, "--json")).json()
    assert [entry["path"] for entry in listed["entries"]] == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    info = ok(deltahub("info", f"{name}@main")).out
    assert "model.0.embedding.weight" in info
    assert "base declared: none\nbase measured: " in info
    brief = ok(deltahub("info", f"{name}-tuned", "--brief")).out
    assert f"base declared: {name}" in brief
    assert "embedding" not in brief
    (without,) = [
        file
        for file in ok(deltahub("info", f"{name}-tuned", "--brief", "--json")).json()["files"]
        if file["kind"] == "safetensors"
    ]
    assert "tensors" not in without
    assert without["stored"]

    ok(deltahub("rm", name, "README.md", "--yes"))
    assert "README.md" not in ok(deltahub("ls", name)).out
    assert ok(deltahub("rm", name, "--yes", "--json")).json() == {"deleted": name}
    assert deltahub("ls", name).status == 3


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["pull", "admin/absent"], 3, "repository_not_found"),
        (["ls", "admin/absent"], 3, "repository_not_found"),
        (["info", "admin/absent"], 3, "repository_not_found"),
        (["rm", "admin/absent", "--yes"], 3, "repository_not_found"),
        (["rm", "admin/absent"], 2, "usage_error"),
        (["whoami", "--token", "dh_wrong"], 4, "unauthorized"),
        (["whoami", "--url", "http://127.0.0.1:9"], 5, "hub_unreachable"),
        (["whoami", "--url", "ftp://x"], 2, "invalid_argument"),
        (["whoami", "--url", "http://[::1"], 2, "invalid_argument"),
        (["whoami", "--token", "a b\nc"], 2, "invalid_argument"),
        (["login", "--token", "x€"], 2, "invalid_argument"),
        (["pull", "noslash"], 2, "invalid_argument"),
        (["pull", "a/b@x", "--revision", "y"], 2, "usage_error"),
        (["push", "/nowhere", "a/b"], 2, "usage_error"),
        (["push", "--mirror", __file__, "a/b"], 2, "usage_error"),
        (["frobnicate"], 2, "usage_error"),
        (["--frobnicate"], 2, "usage_error"),
        (["push", str(Path(__file__).parent), "admin/x@bad..name"], 2, "invalid_argument"),
        (["push", str(Path(__file__).parent), "admin/x", "--base", "x"], 2, "invalid_argument"),
        (["rm", "admin/x@bad..name", "f", "--yes"], 2, "invalid_argument"),
        (["push", str(Path(__file__).parent), "bad name/x"], 2, "invalid_argument"),
        (["push", __file__, "admin/x", "--path", "../x"], 2, "invalid_argument"),
        (["pull", "a/b/c"], 2, "invalid_argument"),
        (["info", "admin/-x"], 2, "invalid_argument"),
        (["rm", "admin/x.git", "--yes"], 2, "invalid_argument"),
        (["ls", "bad name"], 2, "invalid_argument"),
        (["ls", "nobody"], 3, "not_found"),
        (["push", str(Path(__file__).parent), "nobody/x"], 4, "forbidden"),
    ],
)
def test_a_refusal_is_one_line_or_one_object_and_a_documented_status(
    arguments: list[str], status: int, code: str
) -> None:
    runner = CliRunner()
    as_json = runner.invoke(group, [*arguments, "--json"])
    assert (as_json.exit_code, as_json.stdout) == (status, ""), as_json.stderr
    assert json.loads(as_json.stderr)["error"]["code"] == code
    as_text = runner.invoke(group, arguments)
    assert as_text.exit_code == status
    assert as_text.stderr.startswith("deltahub: ")
    assert as_text.stderr.count("\n") == 1


@pytest.mark.usefixtures("run")
def test_a_token_without_the_right_to_write_is_status_4(
    hub_server: RunningHub, folder: Path
) -> None:
    token = hub_server.user("looker", "read")
    refused = deltahub("push", str(folder), "looker/x", "--token", token, "--json")
    assert (refused.status, refused.error()["code"]) == (4, "forbidden")


def test_login_stores_what_later_commands_use(hub_server: RunningHub, home: Path) -> None:
    refused = deltahub("login", "--url", hub_server.url, "--token", "dh_wrong")
    assert refused.status == 4
    assert not (home / ".config").exists()
    stored = ok(deltahub("login", "--url", hub_server.url, given=f"{hub_server.admin_token}\n"))
    assert stored.out.startswith(f"admin at {hub_server.url}")
    printed = ok(deltahub("whoami", "--json")).json()
    assert (printed["is_admin"], printed["url"]) == (True, hub_server.url)
    assert deltahub("login", "--url", hub_server.url).status == 2
    path = home / ".config" / "deltahub" / "credentials.json"
    path.write_text("{bad")
    assert "run `deltahub login` again" in deltahub("whoami").err
    arguments = ("--url", hub_server.url, "--token", hub_server.admin_token)
    assert ok(deltahub("whoami", *arguments)).out.startswith("admin at")
    assert "log in again to other hubs" in ok(deltahub("login", *arguments)).out
    assert ok(deltahub("whoami")).out.startswith("admin at")


def test_a_namespace_of_ones_own_may_be_empty(
    hub_server: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAHUB_URL", hub_server.url)
    token = hub_server.user("newcomer")
    shown = CliRunner().invoke(group, ["ls", "newcomer", "--token", token])
    assert (shown.exit_code, shown.stdout) == (0, "no repositories\n")
    # To others it is as absent as one that nobody has.
    assert CliRunner().invoke(group, ["ls", "newcomer"]).exit_code == 3
    shown = CliRunner().invoke(group, ["ls", "newcomer", "--search", "x", "--token", token])
    assert shown.exit_code == 0


@pytest.mark.usefixtures("run")
def test_mirroring_an_empty_folder_asks_first(name: str, tmp_path: Path, hub: Hub) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "f").write_text("f")
    hub.push(folder, name)
    (folder / "f").unlink()
    arguments = ["push", "--mirror", str(folder), name]
    refused = CliRunner().invoke(group, [*arguments, "--json"])
    assert refused.exit_code == 2
    assert "needs --yes" in json.loads(refused.stderr)["error"]["message"]
    assert len(hub.revision(name).entries) == 1
    done = CliRunner().invoke(group, [*arguments, "--yes"])
    assert (done.exit_code, hub.revision(name).entries) == (0, ())


@pytest.mark.usefixtures("run")
def test_one_file_is_not_1_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    pushed = CliRunner().invoke(group, ["push", str(tmp_path / "f"), name])
    assert ": 1 file added, 0 deleted" in pushed.stdout
    pulled = CliRunner().invoke(group, ["pull", name, "--to", str(tmp_path / "to")])
    assert "1 of 1 file, " in pulled.stderr
    removed = CliRunner().invoke(group, ["rm", name, "f", "--yes"])
    assert removed.stdout.startswith(f"deleted 1 file of {name}@main;")


@pytest.mark.usefixtures("run")
def test_a_push_that_is_refused_warns_of_no_base(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("f")
    monkeypatch.delenv("DELTAHUB_TOKEN")
    push = ["push", str(tmp_path / "f"), name, "--base", "admin/nosuch"]
    refused = CliRunner().invoke(group, push)
    assert refused.exit_code == 4
    assert refused.stderr.startswith("deltahub: this needs a token")
    assert "nosuch" not in refused.stderr


@pytest.mark.usefixtures("run")
def test_a_base_that_is_not_there_is_said_and_can_be_taken_back(name: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    push = ["push", str(tmp_path / "f"), name]
    named = CliRunner().invoke(group, [*push, "--base", "admin/nosuch"])
    assert (named.exit_code, named.stderr.count("warning")) == (0, 1)
    assert "warning: there is no admin/nosuch that you may read here" in named.stderr
    again = json.loads(CliRunner().invoke(group, [*push, "--json"]).stdout)
    assert (again["changed"], again["base"], again["base_state"]) == (False, None, None)
    changed = CliRunner().invoke(group, [*push, "--base", "admin/nosuch2"])
    assert "1 file unchanged, base declared: admin/nosuch2; 0 B sent" in changed.stdout
    assert "hash" not in changed.stderr  # nothing was read
    told = CliRunner().invoke(group, [*push, "--base", "admin/nosuch2", "--json"])
    assert json.loads(told.stdout)["base_state"] == "absent"
    (tmp_path / "f").write_text("another f")
    assert CliRunner().invoke(group, push).exit_code == 0
    shown = CliRunner().invoke(group, ["info", name]).stdout
    assert "base declared: admin/nosuch2 (absent" in shown
    taken = CliRunner().invoke(group, [*push, "--base", "none"])
    assert "base declared: none" in taken.stdout
    assert "warning" not in taken.stderr
    assert "base declared: none" in CliRunner().invoke(group, ["info", name]).stdout


@pytest.mark.usefixtures("run")
def test_the_card_declares_the_base_unless_the_command_does(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()

    def declared(*options: str) -> str:
        pushed = CliRunner().invoke(group, ["push", str(folder), name, *options])
        assert pushed.exit_code == 0, pushed.stderr
        shown = CliRunner().invoke(group, ["info", name]).stdout
        return next(line for line in shown.splitlines() if line.startswith("base declared: "))

    (folder / "README.md").write_text("---\nbase_model: org/carded\n---\n")
    assert declared().startswith("base declared: org/carded (absent")
    assert declared("--base", "none") == "base declared: none"
    assert declared() == "base declared: none"  # the model card is unchanged
    (folder / "README.md").write_text("---\nbase_model: org/second\n---\n")
    assert declared("--base", "org/said").startswith("base declared: org/said (absent")
    (folder / "README.md").write_text("---\nbase_model: org/third\n---\n")
    assert declared().startswith("base declared: org/third (absent")


def test_a_repository_is_hidden_and_shown_again(
    run: object, hub_server: RunningHub, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("f")
    push = ["push", str(tmp_path / "f"), name]
    assert CliRunner().invoke(group, push).exit_code == 0
    refused = CliRunner().invoke(group, [*push, "--private"])
    assert refused.exit_code == 2
    assert f"{name} exists and is public" in refused.stderr
    assert f"`deltahub visibility {name} private`" in refused.stderr
    hidden = CliRunner().invoke(group, ["visibility", name, "private"])
    assert (hidden.exit_code, hidden.stdout) == (0, f"{name} is private\n")
    assert CliRunner().invoke(group, [*push, "--private"]).exit_code == 0
    with Hub(hub_server.url, hub_server.user("passer")) as other:
        with pytest.raises(RepositoryNotFound):
            other.set_private(name, False)
        shown = CliRunner().invoke(group, ["visibility", name, "public", "--json"])
        assert json.loads(shown.stdout)["private"] is False
        with pytest.raises(Forbidden):
            other.set_private(name, True)
        assert other.repository(name).private is False
    assert CliRunner().invoke(group, ["visibility", name, "open"]).exit_code == 2
    assert CliRunner().invoke(group, ["visibility", f"{name}-no", "private"]).exit_code == 3


@pytest.mark.usefixtures("run")
def test_a_pull_into_a_folder_replaces_what_pulls_left_there_and_nothing_else(
    name: str, tmp_path: Path, hub: Hub
) -> None:
    source, to = tmp_path / "m", tmp_path / "to"
    for folder in (source, to):
        folder.mkdir()
    (source / "a").write_text("first")
    (source / "b").write_text("first")
    hub.push(source, name)
    (to / "a").write_text("mine!")
    pull = ["pull", name, "--to", str(to)]
    refused = CliRunner().invoke(group, pull)
    assert (refused.exit_code, contents(to)) == (2, {"a": b"mine!"})
    assert "1 file that no pull left so, and this one would replace: a; --ov" in refused.stderr
    forced = CliRunner().invoke(group, [*pull, "--overwrite"])
    assert (forced.exit_code, contents(to)) == (0, contents(source))
    assert "replaced yours: a\n" in forced.stderr

    (source / "a").write_text("second")
    (source / "b").unlink()
    hub.push(source, name, mirror=True)
    pulled = CliRunner().invoke(group, pull)
    assert (pulled.exit_code, contents(to)) == (0, {"a": b"second", "b": b"first"})
    assert "left there by an earlier pull: b\n" in pulled.stderr
    (to / "a").write_text("edited")
    assert CliRunner().invoke(group, pull).exit_code == 2
    assert contents(to)["a"] == b"edited"


@pytest.mark.usefixtures("run")
def test_one_file_can_be_pushed_under_another_name(tmp_path: Path, name: str, hub: Hub) -> None:
    (tmp_path / "x.txt").write_text("x")
    ok(deltahub("push", str(tmp_path / "x.txt"), name, "--path", "sub/y.txt"))
    assert contents(hub.pull(name)) == {"sub/y.txt": b"x"}


def test_the_service_says_which_extra_is_missing(tmp_path: Path) -> None:
    """Packages that cannot be imported imitate an install without the extra."""
    for package in ("fastapi", "sqlalchemy", "pydantic", "pydantic_settings", "uvicorn", "dbos"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(
            f"raise ModuleNotFoundError('No module named {package}', name='{package}')"
        )
    environment = {"PYTHONPATH": str(tmp_path)}
    data = str(tmp_path / "data")
    for arguments, extra in (
        (("serve", "--data-dir", data, "--port", "0"), "server"),
        (("worker", "--data-dir", data), "worker"),
        (("fsck", "--data-dir", data), "server"),
    ):
        run = deltahub(*arguments, environment=environment)
        assert run.status == 2, run.err
        assert f'in a checkout of DeltaHub, run pip install ".[{extra}]"' in run.err
        assert "Traceback" not in run.err
        assert not (tmp_path / "data").exists()
    assert ok(deltahub("--help", environment=environment)).out.count("serve") == 1


def test_a_command_of_the_service_says_in_json_what_it_refuses(tmp_path: Path) -> None:
    for arguments, status in ((["user", "list"], 1), (["gc"], 2)):
        run = CliRunner().invoke(group, [*arguments, "--data-dir", str(tmp_path), "--json"])
        assert (run.exit_code, run.stdout) == (status, "")
        assert json.loads(run.stderr)["error"]["code"] == "no_hub"


@pytest.mark.usefixtures("run")
def test_info_of_files_that_are_no_weights_says_so(name: str, tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "f").write_text("f")
    hub.upload_file(tmp_path / "f", name)
    hub.upload_file(tmp_path / "f", f"{name}-copy")
    shown = CliRunner().invoke(group, ["info", f"{name}-copy"]).stdout
    assert "base declared: none\nbase measured: none: there are no safetensors files here" in shown


def test_help_names_every_command_and_loads_none() -> None:
    shown = ok(deltahub("--help")).out
    service = list(entry_points(group="deltahub.commands").names)
    assert "backup" in service
    for command in (*COMMANDS, *service):
        assert re.search(rf"^  {command} +\w", shown, re.MULTILINE), f"{command} has no text"
    for command in COMMANDS:
        assert "--json" in ok(deltahub(command, "--help")).out


def test_the_command_starts_without_loading_what_it_does_not_need() -> None:
    probe = (
        "import sys; from deltahub.client.cli import commands, push_pull;"
        "print([m for m in ('numpy', 'torch', 'rich', 'sqlite3', 'blake3', 'fastapi')"
        " if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.strip() in ("[]", "['sqlite3']")


def test_every_command_and_option_is_documented() -> None:
    text = DOCS.read_text()
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert f"`deltahub {name}" in text
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    assert f"`{option}" in text, f"{name} {option}"


def test_json_is_one_object(hub_server: RunningHub) -> None:
    run = deltahub("ls", "--json", "--url", hub_server.url, "--token", hub_server.admin_token)
    assert "items" in json.loads(ok(run).out)
