"""A hub of one's own for a demonstration or a measurement, driven through the real CLI."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_CLI = [sys.executable, "-c", "from deltahub.client.cli.main import main; main()"]
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 60
_TOKEN = re.compile(r"\bhf_[A-Za-z]+")
_URL = re.compile(r"listening on (http://\S+)")


class HubFailed(Exception):
    """The hub or a command did not do what it was asked; the text has its last words."""


def stop_in_order() -> None:
    """Makes SIGTERM and SIGHUP end this process as Ctrl-C does: hubs stop, scratch folders go."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


@dataclass(frozen=True)
class Traffic:
    """Bytes at the server's sockets, headers included, over some period."""

    received_bytes: int
    sent_bytes: int

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.received_bytes - other.received_bytes, self.sent_bytes - other.sent_bytes
        )


class EmbeddedHub:
    """`deltahub serve` on a data folder and a free loopback port, until the block ends."""

    def __init__(
        self, data_dir: Path, log_path: Path, *, token: str = "", code: str = "", **environment: str
    ) -> None:
        """token: of the administrator, where the folder has a hub already.

        code: Python that the server runs first.
        """
        self.data_dir = data_dir
        self.url = ""
        self.token = token
        self._code = code
        self._log_path = log_path
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the hub is not started"
        return self._process.pid

    def __enter__(self) -> "EmbeddedHub":
        start = [*_CLI[:-1], self._code + _CLI[-1]]
        command = [*start, "serve", "--data-dir", str(self.data_dir), "--port", "0"]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_clean_environment(self._environment),
                start_new_session=True,  # Ctrl-C is ours to handle: we stop the hub in order
            )
        try:
            self._read_greeting(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def traffic(self) -> Traffic:
        """What crossed the server's sockets since it started."""
        request = urllib.request.Request(
            f"{self.url}/v1/metrics", headers={"Authorization": f"Bearer {self.token}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            counters = json.load(answer)
        return Traffic(counters["received_bytes"], counters["sent_bytes"])

    def stored(self) -> tuple[int, int]:
        """(bytes of objects, bytes of metadata: the SQLite files) in the data folder."""
        objects = metadata = 0
        for path in self.data_dir.rglob("*"):
            if path.is_file():
                size = path.stat().st_size
                if ".sqlite" in path.name or path.suffix == ".db":
                    metadata += size
                else:
                    objects += size
        return objects, metadata

    def collect_garbage(self) -> None:
        run_cli(["gc", "--apply", "--data-dir", str(self.data_dir)], self._environment)

    def client_environment(self, cache: Path) -> dict[str, str]:
        """The environment of a client with a cache of its own that talks to this hub."""
        return {
            "DELTAHUB_URL": self.url,
            "DELTAHUB_TOKEN": self.token,
            "DELTAHUB_CACHE": str(cache / "deltahub"),
            "HF_HUB_CACHE": str(cache / "huggingface"),
            "XDG_CONFIG_HOME": str(cache / "config"),
        }

    def _read_greeting(self, process: subprocess.Popen[str]) -> None:
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            # To the end, so that the hub never waits for a reader of its standard output.
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        while not self.url:
            try:
                line = lines.get(timeout=_START_TIMEOUT_S)
            except queue.Empty as exc:
                raise HubFailed(f"the hub did not start in {_START_TIMEOUT_S} s") from exc
            if line is None:
                raise HubFailed(f"the hub ended before it listened:\n{_tail(self._log_path)}")
            if token := _TOKEN.search(line):
                self.token = token.group()
            if url := _URL.search(line):
                self.url = url.group(1)
        if not self.token:
            raise HubFailed("the hub printed no administrator's token at its first start")

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start_cli(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """`deltahub ARGUMENTS`, started; both outputs are pipes."""
    return subprocess.Popen(
        [*_CLI, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_clean_environment(environment),
    )


def finish_cli(process: subprocess.Popen[str]) -> str:
    """Its standard output. HubFailed with what it said if it failed."""
    output, errors = process.communicate()
    if process.returncode != 0:
        shown = " ".join(str(argument) for argument in process.args[len(_CLI) :])  # type: ignore[index,union-attr]
        raise HubFailed(f"deltahub {shown}: exit status {process.returncode}\n{errors}{output}")
    return output


def run_cli(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    return finish_cli(start_cli(arguments, environment))


def run_json(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """What `deltahub ARGUMENTS --json` printed."""
    return json.loads(run_cli([*arguments, "--json"], environment))


def _clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what would point a command at another hub or cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DELTAHUB_")}
    return {**kept, **extra}


def _tail(path: Path, n_lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-n_lines:])
