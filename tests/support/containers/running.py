"""The services of docker-compose.yml, run by hand in the order and the way an engine runs them."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.containers.compose import Service
from support.containers.dockerfile import Image
from support.containers.sandbox import Contained, Container, Machine

HEALTHY_WITHIN_S = 90
CLIENT = {"DELTAHUB_URL": "http://127.0.0.1:8377", "DELTAHUB_CACHE": "/tmp/deltahub"}


@dataclass
class Composition:
    """The services, their volumes, and what runs."""

    machine: Machine
    services: Mapping[str, Service]
    image: Image  # the hub's
    other: Path  # the root folder of every other image
    folder: Path
    running: dict[str, Contained] = field(default_factory=dict)

    def container(self, name: str) -> Container:
        service = self.services[name]
        volumes = {}
        for volume in service.values.get("volumes", []):
            path = self.folder / "volumes" / volume.split(":")[0]
            path.mkdir(parents=True, exist_ok=True)
            volumes[path.name] = path
        if "build" in service.values:
            image = self.image
            return service.container(
                image.root, volumes, image.environment, user=image.user, workdir=image.workdir
            )
        return service.container(self.other, volumes, {"PATH": "/image/bin:/usr/bin:/bin"})

    def start(self, name: str) -> None:
        command = self.services[name].command or self.image.command
        with self.log(name).open("ab") as log:
            self.running[name] = self.machine.start(
                self.container(name), command, stdout=log, stderr=log
            )

    def run_to_the_end(self, name: str) -> None:
        """Run a service that others wait for to have ended well."""
        done = self.machine.run(self.container(name), self.services[name].command)
        assert done.returncode == 0, (done.stdout, done.stderr)

    def is_healthy(self, name: str) -> bool:
        """What the service's own health check says, run inside its container."""
        service = self.services[name]
        has_own = "healthcheck" in service.values
        command = service.healthcheck if has_own else self.image.healthcheck
        return self.machine.run(self.container(name), command, timeout_s=30).returncode == 0

    def wait_until_healthy(self, name: str) -> float:
        """Returns the seconds that it took."""
        began = time.monotonic()
        while not self.is_healthy(name):
            status = self.running[name].process.poll()
            assert status is None, f"{name} ended with {status}: {self.log(name).read_text()}"
            assert time.monotonic() < began + HEALTHY_WITHIN_S, self.log(name).read_text()
            time.sleep(0.3)
        return time.monotonic() - began

    def up(self) -> None:
        """Start everything as `docker compose up` does: each service after what it depends on."""
        for name in ordered(self.services):
            service = self.services[name]
            for needed, how in service.values.get("depends_on", {}).items():
                if how["condition"] == "service_healthy":
                    self.wait_until_healthy(needed)
                else:
                    assert how["condition"] == "service_completed_successfully"
                    self.run_to_the_end(needed)
            if service.values["restart"] != "no":
                self.start(name)

    def down(self) -> None:
        for name in reversed(self.running):
            self.running[name].kill()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def token(self) -> str:
        """The administrator's, which the first start prints."""
        found = re.search(r"with the token (\S+)", self.log("hub").read_text())
        assert found is not None, self.log("hub").read_text()
        return found[1]

    def client(self, *command: str, models: Path, token: str) -> Contained:
        """Start a command of our client, with an empty cache, in a container beside the hub."""
        container = self.image.container(
            environment={**self.image.environment, **CLIENT, "DELTAHUB_TOKEN": token},
            volumes={"/data": models},
            tmpfs={"/tmp": "size=512m"},
        )
        log = (self.folder / "client.log").open("ab")
        with log:
            return self.machine.start(container, ["deltahub", *command], stdout=log, stderr=log)

    def must(self, *command: str, models: Path, token: str) -> None:
        """Run a command of our client that has to succeed."""
        client = self.client(*command, models=models, token=token)
        status = client.process.wait(180)
        logs = [(self.folder / f"{name}.log").read_text()[-3000:] for name in ("client", "hub")]
        assert status == 0, "\n".join(logs)

    def wait_for_half_an_upload(self) -> None:
        """Until the hub has 32 MiB or more of an upload that is not whole."""
        spool = self.folder / "volumes" / "hub" / "spool"
        deadline = time.monotonic() + 60
        while size_of(spool) < 32 << 20:
            assert time.monotonic() < deadline, self.log("hub").read_text()
            time.sleep(0.01)


def size_of(folder: Path) -> int:
    """Bytes of the files below, some of which may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def ordered(services: Mapping[str, Service]) -> list[str]:
    """The names of services, each after those that it depends on."""
    result: list[str] = []

    def add(name: str) -> None:
        for needed in services[name].values.get("depends_on", {}):
            add(needed)
        if name not in result:
            result.append(name)

    for name in services:
        add(name)
    return result
