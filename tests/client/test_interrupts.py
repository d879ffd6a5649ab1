"""Ctrl-C while a command is still being imported."""

import json
import subprocess
import sys

import pytest

# Presses Ctrl-C when the named module is imported.
COMMAND = """
import os, signal, sys

class Finger:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finger())
signal.signal(signal.SIGINT, getattr(signal, sys.argv[2]))
from deltahub.client.cli.main import main
main(sys.argv[3:])
"""


def press(module: str, *arguments: str, handler: str = "default_int_handler") -> tuple[int, str]:
    """The exit status and stderr of a command interrupted while the module is imported."""
    run = subprocess.run(
        [sys.executable, "-c", COMMAND, module, handler, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("click", ["ls"]),
        ("deltahub.client.hub", ["ls"]),
        ("deltahub.client.cli.push_pull", ["push"]),
        ("deltahub.registry.commands.maintenance", ["gc"]),
    ],
)
def test_ctrl_c_while_a_command_is_loaded_is_one_line_and_status_130(
    module: str, arguments: list[str]
) -> None:
    assert press(module, *arguments) == (130, "deltahub: interrupted\n")


def test_ctrl_c_while_a_command_is_loaded_is_one_json_object_where_that_was_asked_for() -> None:
    status, err = press("http.client", "ls", "--json")
    assert status == 130
    assert json.loads(err)["error"]["code"] == "interrupted"


def test_a_command_that_was_started_deaf_to_ctrl_c_stays_so() -> None:
    status, err = press("click", "ls", "--no-such-option", handler="SIG_IGN")
    assert (status, "--no-such-option" in err) == (2, True)


def test_nothing_is_loaded_before_ctrl_c_is_handled() -> None:
    code = (
        "import sys; had = set(sys.modules); import deltahub.client.cli.main;"
        "print({m.partition('.')[0] for m in set(sys.modules) - had} - sys.stdlib_module_names)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "{'deltahub'}\n"
