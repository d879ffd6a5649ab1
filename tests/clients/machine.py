"""A user's computer: one client, a home of its own, and HF_ENDPOINT; nothing else is set."""

import json
import os
import subprocess
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from clients.environments import Environment

TIMEOUT_S = 120
_DRIVER = Path(__file__).resolve().parent / "driver.py"
_numbers = count()


class ClientFailed(AssertionError):
    """A client ended with an error where none was expected; with all that it printed."""


@dataclass(frozen=True)
class Refusal:
    """An error that a script ended with."""

    kinds: list[str]  # its class and those above, the nearest first
    text: str
    output: str  # all that a user would have seen

    @property
    def kind(self) -> str:
        return self.kinds[0]


@dataclass(frozen=True)
class Machine:
    """Scripts and commands run here share a cache, and nothing with other machines."""

    environment: Environment
    home: Path
    endpoint: str
    token: str | None
    settings: Mapping[str, str] = field(default_factory=dict)  # environment variables

    @property
    def version(self) -> tuple[int, ...]:
        """That of huggingface_hub."""
        return self.environment.version

    @property
    def sends_by_xet(self) -> bool:
        """Whether large files go through Xet: later clients do not ask the hub."""
        return self.version >= (1, 20) and "HF_HUB_DISABLE_XET" not in self.settings

    def another(self, **changes: Any) -> "Machine":
        """A computer that knows nothing of what this one did.

        changes: token, endpoint, settings.
        """
        return replace(self, home=self.home.parent / f"home-{next(_numbers)}", **changes)

    def run(self, script: str, *, env: Mapping[str, str] | None = None, **given: Any) -> Any:
        """What a script left in `result`. given: JSON, names that it begins with."""
        done, answer = self._script(script, env, given)
        if done.returncode or "result" not in answer:
            raise ClientFailed(f"{self.environment.name}:\n{done.stdout}{done.stderr}")
        return answer["result"]

    def refused(
        self, script: str, *, env: Mapping[str, str] | None = None, **given: Any
    ) -> Refusal:
        """The error that a script ended with."""
        done, answer = self._script(script, env, given)
        output = done.stdout + done.stderr
        if "kinds" not in answer:
            raise ClientFailed(f"{self.environment.name}: no error, {answer}:\n{output}")
        return Refusal(answer["kinds"], answer["text"], output)

    def start(self, script: str, **given: Any) -> "subprocess.Popen[bytes]":
        """A script on its way, for who wants to end it. given: as for run()."""
        command, _ = self._command(script, given)
        return subprocess.Popen(
            command,
            env=self._environment(None),
            cwd=self.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def command(
        self, *arguments: object, program: str = "hf", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command that the client installed, as it ended."""
        path = self.environment.folder / "bin" / program
        return self._process([str(path), *map(str, arguments)], env)

    def _script(
        self, script: str, env: Mapping[str, str] | None, given: dict[str, Any]
    ) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        command, answer = self._command(script, given)
        done = self._process(command, env)
        return done, json.loads(answer.read_text()) if answer.exists() else {}

    def _command(self, script: str, given: dict[str, Any]) -> tuple[list[str], Path]:
        """The command that runs a script, and where it leaves its answer."""
        number = next(_numbers)
        self.home.mkdir(parents=True, exist_ok=True)
        source = self.home / f"script-{number}.py"
        source.write_text(textwrap.dedent(script))
        answer = self.home / f"answer-{number}.json"
        given_text = json.dumps(given, default=str)
        python = str(self.environment.python)
        return [python, str(_DRIVER), str(source), given_text, str(answer)], answer

    def _process(
        self, command: list[str], env: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self._environment(env),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        hf_home = self.home / "hf"
        hf_home.mkdir(parents=True, exist_ok=True)
        # As if the newest version had been asked for today: no test leaves this machine.
        (hf_home / ".check_for_update_done").touch()
        return {
            "PATH": f"{self.environment.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "HF_HOME": str(hf_home),
            "HF_ENDPOINT": self.endpoint,
            **({} if self.token is None else {"HF_TOKEN": self.token}),
            # Two processes of the tests share two cores.
            "OMP_NUM_THREADS": "1",
            **self.settings,
            **(env or {}),
        }


def hashes(folder: str | Path) -> dict[str, str]:
    """path -> SHA-256 of every file below, without what clients keep for themselves."""
    root = Path(folder)
    return {
        path.relative_to(root).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".cache" not in path.relative_to(root).parts
    }
