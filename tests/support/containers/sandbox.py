"""Runs what an image would run, in namespaces of its own, where no container engine is.

A machine has a network with nothing but loopback. A container on it sees a root of its own: the
system's folders read-only, what its Dockerfile made, its volumes, and one user without any rights.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from support.needed import lacking

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc")
# Where the stand-in for a base image has the programs that the real one has in /usr/local/bin.
TOOLS = "/image/bin"
BASE_PATH = f"{TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Container:
    """One container's root folder and what it may do. volumes, tmpfs: by the path inside."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: tuple[int, int] = (10001, 10001)
    workdir: str = "/"
    volumes: Mapping[str, Path] = field(default_factory=dict)
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    read_only: bool = False


@dataclass
class Contained:
    """A command that runs in a container."""

    process: subprocess.Popen[bytes]

    def signal(self, number: int) -> None:
        os.kill(self._first(), number)

    def kill(self) -> None:
        """End the container as the kernel does when memory is short."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self, number: int, grace_s: float) -> int:
        """Ask the command to end; returns its exit status. TimeoutExpired after grace_s."""
        self.signal(number)
        return self.process.wait(grace_s)

    def _first(self) -> int:
        """The process that is number 1 in the container, by its number outside."""
        pid = self.process.pid
        while True:
            status = Path(f"/proc/{pid}/status").read_text()
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if numbers.split()[-1] == "1":
                return pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            assert children, "the container has no process yet, or none any more"
            pid = int(children[0])


class Machine:
    """Namespaces that several containers share: one network, one root user of no importance."""

    def __init__(self, holder: int, hosts: Path) -> None:
        self._holder = holder
        self._hosts = hosts

    def start(
        self,
        container: Container,
        command: Sequence[str],
        *,
        is_online: bool = False,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
    ) -> Contained:
        """Start a command. is_online: in this machine's own network, to install packages."""
        enter = ["nsenter", f"--target={self._holder}", "--user", "--preserve-credentials"]
        enter += [] if is_online else ["--net"]
        isolate = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc"]
        script = _script(container, command, None if is_online else self._hosts)
        return Contained(subprocess.Popen([*enter, *isolate, script], stdout=stdout, stderr=stderr))

    def run(
        self, container: Container, command: Sequence[str], *, timeout_s: float = 120, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        running = self.start(
            container, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
        )
        try:
            out, err = running.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
        status = running.process.returncode
        return subprocess.CompletedProcess(command, status, out.decode(), err.decode())


@contextmanager
def machine(folder: Path, names: Sequence[str] = ()) -> Iterator[Machine]:
    """A machine until the end. names: host names that lead to its loopback."""
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        lacking("there is no ip or no nsenter on this machine")
    command = [
        "unshare", "--user", "--map-root-user", "--net", "sh", "-c",
        "ip link set lo up && echo ready && exec sleep infinity",
    ]  # fmt: skip
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            lacking("this machine lets nobody make namespaces (unshare --user --net)")
        hosts = folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
        yield Machine(holder.pid, hosts)
    finally:
        holder.kill()
        holder.communicate()


def base_image(root: Path, programs: Mapping[str, Path]) -> None:
    """Make a root folder with the system's folders, this Python and some programs."""
    for name in (*SYSTEM, "proc", "dev", "tmp", "image/bin"):
        outside = Path("/", name)
        if outside.is_symlink():
            (root / name).symlink_to(os.readlink(outside))
        elif outside.exists() or name.startswith("image"):
            (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        (root / "image/bin" / name).symlink_to(os.path.realpath(sys.executable))
    for name, path in programs.items():
        shutil.copy(path, root / "image/bin" / name)


def _script(container: Container, command: Sequence[str], hosts: Path | None) -> str:
    root = container.root
    lines = [f"mount --bind {_q(root)} {_q(root)}"]

    def bind(outside: Path, inside: str, mode: str = "ro") -> None:
        target = _q(root / inside.lstrip("/"))
        lines.append(f"mount --rbind {_q(outside)} {target}")
        if mode == "ro":
            lines.append(f"mount -o remount,bind,ro {target}")

    for name in SYSTEM:
        if Path("/", name).is_dir() and not Path("/", name).is_symlink():
            bind(Path("/", name), name)
    if Path(sys.base_prefix) != Path("/usr"):
        # At its own path, because a Python looks for its library there.
        (root / sys.base_prefix.lstrip("/")).mkdir(parents=True, exist_ok=True)
        bind(Path(sys.base_prefix), sys.base_prefix)
    bind(Path("/dev"), "/dev", "rw")
    lines.append(f"mount -t proc proc {_q(root / 'proc')}")
    if hosts is not None:
        bind(hosts, "/etc/hosts")
    for inside, options in container.tmpfs.items():
        (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        # As engines mount them.
        wish = ",".join(["nosuid,nodev,noexec", *([options] if options else [])])
        lines.append(f"mount -t tmpfs -o {shlex.quote(wish)} none {_q(root / inside.lstrip('/'))}")
    for inside, outside in container.volumes.items():
        (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        bind(outside, inside, "rw")
    if container.read_only:
        lines.append(f"mount -o remount,bind,ro {_q(root)}")
    user, group = container.user
    environment = [f"{name}={value}" for name, value in container.environment.items()]
    last = [
        "unshare", "--user", f"--map-user={user}", f"--map-group={group}",
        f"--root={root}", f"--wd={container.workdir}",
        "/usr/bin/env", "-i", *environment, "/usr/bin/setpriv", "--no-new-privs", "--", *command,
    ]  # fmt: skip
    return "\n".join([*lines, f"exec {shlex.join(last)}"])


def _q(path: Path) -> str:
    return shlex.quote(str(path))
