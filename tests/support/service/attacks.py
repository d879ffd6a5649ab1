"""Callers that try to keep a hub from answering others, and one user who measures whether it does.

Every attack runs in a thread until `stop` is set. Whatever the hub answers, the attack goes on.
"""

import http.client
import json
import multiprocessing
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from sqlalchemy import select

from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.catalog.trees.write import change_tree
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.registry.xet import FileOf, ShardOf
from support.service.hub import Hub

PATIENCE_S: Final = 10
HEADER_BYTES: Final = 4 << 20


def fill(hub: Hub, n_models: int, n_entries: int) -> None:
    """Public models `admin/many-I` of many entries, and `admin/wide` with large headers."""
    for i in range(n_models):
        hub.create(f"admin/many-{i}")
        hub.commit(f"admin/many-{i}", {"README.md": b"# many"})
    meta = {"__metadata__": {"x": "y" * HEADER_BYTES}}
    header = json.dumps(meta).encode()
    data = len(header).to_bytes(8, "little") + header
    names = [f"{i}.safetensors" for i in range(100)]
    index = json.dumps({"metadata": {}, "weight_map": {f"w{n}": n for n in names}}).encode()
    hub.create("admin/wide")
    hub.commit("admin/wide", {"model.safetensors.index.json": index, names[0]: data})
    copies = [
        {"op": "add", "path": name, "sha256": sha256(data).hexdigest(), "size": len(data)}
        for name in names[1:]
    ]
    path = "/v1/repositories/admin/wide/commits"
    answer = hub.call("POST", path, token=hub.admin_token, body={"operations": copies})
    assert answer.status == 201, answer.body
    with Registry.open(Settings(data_dir=hub.data_dir)) as reg, reg.db.write() as session:
        revisions = session.scalars(
            select(Revision)
            .join(Repository, Repository.id == Revision.repository_id)
            .where(Repository.name.like("many-%"))
        ).all()
        for revision in revisions:
            tree = Tree(session, revision.tree_id)
            (readme,) = tree.at(["README.md"]).values()
            files = {f"folder/{i:06}.txt": readme for i in range(n_entries)}
            revision.tree_id = change_tree(
                session, revision.repository_id, tree, files, readme.changed
            )


@dataclass
class Attack:
    """What an attacker needs. tokens: of two users, the first of whom owns `eve/m`.

    address: his own, because the hub bounds each address for itself.
    """

    hub: Hub
    tokens: list[str]
    chance: random.Random
    stop: Event
    address: str

    def connect(self) -> socket.socket:
        return socket.create_connection(self.hub.address, PATIENCE_S, (self.address, 0))

    def request(
        self, method: str, path: str, body: bytes = b"", *, token: str = "", reads: bool = True
    ) -> None:
        """One request; without `reads` the client leaves after a moment."""
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection(
            *self.hub.address, timeout=PATIENCE_S, source_address=(self.address, 0)
        )
        with suppress(OSError, http.client.HTTPException):
            connection.request(method, path, body, headers)
            if reads:
                connection.getresponse().read()
            else:
                self.stop.wait(self.chance.uniform(0.05, 1))
        connection.close()

    def hold(self, data: bytes, n: int) -> None:
        """Keep n connections open that sent only this, and no more than a byte a second."""
        with ExitStack() as stack:
            sockets = []
            for _ in range(n):
                with suppress(OSError):
                    held = stack.enter_context(self.connect())
                    sockets.append(held)
                    held.sendall(data)
            for _ in range(10):
                if self.stop.wait(1):
                    return
                for held in sockets:
                    with suppress(OSError):
                        held.sendall(b" ")


def list_models(attack: Attack) -> None:
    query = attack.chance.choice(("", "?full=true", "?search=many", "?limit=1000", "?filter=x"))
    attack.request("GET", f"/api/models{query}", reads=False)


def show_models(attack: Attack) -> None:
    name = f"admin/many-{attack.chance.randrange(3)}"
    path = attack.chance.choice(("", "/tree/main?recursive=true", "/tree/main?expand=true"))
    attack.request("GET", f"/api/models/{name}{path}", reads=attack.chance.random() < 0.3)


def read_headers(attack: Attack) -> None:
    path = "/api/models/admin/wide/safetensors-metadata/model.safetensors.index.json"
    attack.request("GET", path, reads=attack.chance.random() < 0.3)


def send_repeating_shards(attack: Attack) -> None:
    answer = attack.hub.call(
        "GET", "/api/models/eve/m/xet-write-token/main", token=attack.tokens[0]
    )
    if answer.status == 200:
        cas = answer.json()["casUrl"].partition(attack.hub.url)[2]
        shard = ShardOf([FileOf([])] * 10_000).body
        attack.request("POST", f"{cas}/v1/shards", shard, token=answer.json()["accessToken"])


def send_slowly_as_guest(attack: Attack) -> None:
    path = b"/api/models/admin/many-0/paths-info/main"
    attack.hold(
        b"POST " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 200000\r\n\r\n{", 40,
    )  # fmt: skip


def upload_in_silence(attack: Attack) -> None:
    token = attack.chance.choice(attack.tokens)
    digest = sha256(attack.chance.randbytes(9)).hexdigest()
    attack.hold(
        f"PUT /v1/uploads/{digest} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        "Content-Length: 1000000\r\n\r\n".encode(), 16,
    )  # fmt: skip


def be_silent(attack: Attack) -> None:
    attack.hold(b"", 150)


def announce(attack: Attack) -> None:
    objects = [
        {"oid": sha256(attack.chance.randbytes(9)).hexdigest(), "size": 1 << 40} for _ in range(50)
    ]
    body = {"operation": "upload", "transfers": ["multipart"], "objects": objects}
    path = "/eve/m.git/info/lfs/objects/batch"
    attack.request("POST", path, json.dumps(body).encode(), token=attack.tokens[0])


def be_odd(attack: Attack) -> None:
    opening = attack.chance.choice(
        (
            b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            attack.chance.randbytes(200),
        )
    )
    with suppress(OSError), attack.connect() as odd:
        odd.sendall(opening)
        odd.recv(4096)


ATTACKS: Final = (
    list_models, list_models, show_models, read_headers, send_repeating_shards,
    send_slowly_as_guest, upload_in_silence, be_silent, announce, be_odd,
)  # fmt: skip


@contextmanager
def under_attack(hub: Hub, tokens: list[str], seed: int) -> Iterator[None]:
    """Four threads of every attack, in a process of their own, until the block ends."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    plain = Hub(hub.url, hub.admin_token, hub.data_dir)
    process = context.Process(target=_attack, args=(plain, tokens, seed, stop))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(PATIENCE_S * 3)
        process.kill()
        process.join()


def _attack(hub: Hub, tokens: list[str], seed: int, stop: Event) -> None:
    def repeat(run: Callable[[Attack], None], number: int) -> None:
        attack = Attack(hub, tokens, random.Random(seed + number), stop, f"127.0.1.{number}")
        while not stop.is_set():
            run(attack)

    for number, run in enumerate(ATTACKS * 4):
        threading.Thread(target=repeat, args=(run, number), daemon=True).start()
    stop.wait()


@dataclass
class Visitor:
    """A user with a token who works. waits_s: seconds that each of his requests took."""

    hub: Hub
    token: str
    name: str
    waits_s: list[float] = field(default_factory=list)

    def work(self, number: int) -> None:
        """Upload a file, commit it, and read it back through several doors."""
        data = b"%d " % number + os.urandom(10)
        digest = sha256(data).hexdigest()
        operation = {"op": "add", "path": "a.txt", "sha256": digest, "size": len(data)}
        self._call("PUT", f"/v1/uploads/{digest}", data)
        self._call(
            "POST", f"/v1/repositories/{self.name}/commits",
            json.dumps({"operations": [operation]}).encode(),
        )  # fmt: skip
        assert self._call("GET", f"/{self.name}/resolve/main/a.txt") == data
        assert self._call("GET", f"/v1/repositories/{self.name}/files/a.txt") == data
        self._call("GET", f"/api/models/{self.name}")
        self._call("GET", "/api/models?limit=5")
        self._call("GET", "/v1/whoami")

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        begin = time.monotonic()
        answer = self.hub.call(
            method, path, token=self.token, body=body, headers={"Content-Type": "application/json"}
        )
        self.waits_s.append(time.monotonic() - begin)
        assert answer.status < 300, (method, path, answer.status, answer.body[:300])
        return answer.body

    def wait_s(self, share: float) -> float:
        """The wait that this share of the requests did not pass."""
        ordered = sorted(self.waits_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the process has ended")
