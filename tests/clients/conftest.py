"""One hub, the clients that talk to it, and a library of repositories that lies on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha1, sha256
from itertools import count
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest

from clients.environments import NAMES, NEWEST, Environment, make_all
from clients.machine import Machine
from clients.models import Models, build
from deltahub.registry.access import tokens, users
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.models.model_folders import contents
from support.service.hub import RunningHub, ServedHub, running_hub, served_hub

# Later clients send large files through Xet, unless they are told not to.
UPLOADERS = (
    *("hub-0.34", "hub-0.36", "hub-1.4", "hub-1.26", NEWEST),
    *("hub-1.26-by-lfs", "newest-by-lfs"),
)
PART_BYTES = 300_000
_numbers = count()


@dataclass(frozen=True)
class World:
    """A hub that is `deltahub serve`, and tokens of its users."""

    hub: ServedHub
    registry: Registry
    alice: str
    alice_reads: str
    bob: str

    def hashes(self, name: str, revision: str = "main") -> dict[str, str]:
        """path -> SHA-256 of the bytes that the hub sends, less what it begins a model with."""
        url = f"/v1/repositories/{name}/revision?revision={quote(revision, safe='')}"
        answer = self.hub.call("GET", url, token=self.alice)
        assert answer.status == 200, answer.body
        found = {}
        for entry in answer.json()["entries"]:
            where = f"/{name}/resolve/{quote(revision, safe='')}/{quote(entry['path'])}"
            sent = self.hub.call("GET", where, token=self.alice)
            assert sent.status == 200, sent.body
            found[entry["path"]] = sha256(sent.body).hexdigest()
            assert found[entry["path"]] == entry["sha256"]
        del found[".gitattributes"]
        return found


@dataclass(frozen=True)
class Library:
    """What alice has on the hub before any test: commits of alice/tiny, the oldest first."""

    models: Models
    commits: tuple[str, ...]
    tiny: dict[str, bytes]  # what alice/tiny has at main, by path
    old_config: bytes

    @property
    def hashes(self) -> dict[str, str]:
        """path -> SHA-256 of what alice/tiny has at main."""
        return {path: sha256(data).hexdigest() for path, data in sorted(self.tiny.items())}

    def blob_id(self, path: str) -> str:
        """By which git knows a file of alice/tiny."""
        data = self.tiny[path]
        return sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.fixture(scope="session")
def environments() -> dict[str, Environment]:
    return {each.name: each for each in make_all()}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data_dir = tmp_path_factory.mktemp("hub") / "data"
    environment = {
        "DELTAHUB_SERVER_LFS_PART_BYTES": str(PART_BYTES),
        "DELTAHUB_SERVER_TRUSTED_PROXIES": "127.0.0.1",
        "DELTAHUB_SERVER_S3_PORT": "0",
    }
    with served_hub(data_dir, environment=environment) as hub:
        # As `deltahub user` does beside a running hub.
        with Registry.open(Settings(data_dir=data_dir)) as registry:
            users.create_user(registry, "alice")
            users.create_user(registry, "bob")
            alice = tokens.create_token(registry, "alice", "write", "laptop")
            reads = tokens.create_token(registry, "alice", "read", "reader")
            bob = tokens.create_token(registry, "bob", "write")
            yield World(hub, registry, alice, reads, bob)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return build(tmp_path_factory.mktemp("models"), "alice/tiny")


@pytest.fixture(scope="session")
def library(world: World, models: Models) -> Library:
    """alice/tiny, alice/sharded, alice/lora and alice/secret, ingested."""
    hub, token = world.hub, world.alice
    for name in ("tiny", "sharded", "lora"):
        hub.create(f"alice/{name}", token=token)
    hub.create("alice/secret", private=True, token=token)
    old = {"config.json": b'{"model_type": "old"}', "old.txt": b"of the first commit"}
    tiny = old | contents(models.tiny) | {"docs/deep/note s.txt": b"a note\n" * 100}
    done = [
        hub.commit("alice/tiny", old, token, message="The first"),
        hub.commit("alice/tiny", tiny, token, message="All of it"),
    ]
    caller = tokens.authenticate(world.registry, token)
    first, second = (each["commit"] for each in done)
    create_ref(world.registry, caller, "alice/tiny", "tag", "v1", first)
    create_ref(world.registry, caller, "alice/tiny", "branch", "dev/x", second)
    done += [
        hub.commit("alice/tiny", {"branch.txt": b"x"}, token, ref="dev/x"),
        hub.commit("alice/sharded", contents(models.sharded), token),
        hub.commit("alice/lora", contents(models.lora), token),
        hub.commit("alice/secret", {"config.json": b"{}", "key.bin": bytes(5000)}, token),
    ]
    for each in done:
        if each["job_id"] is not None:
            job = hub.wait_for_job(each["job_id"], token)
            assert job["state"] == "done", job
    return Library(models, tuple(each["commit"] for each in done[:3]), tiny, old["config.json"])


@pytest.fixture(scope="session")
def big_file(world: World) -> bytes:
    """What alice/big has as big.bin: more than clients write at once."""
    data = Random(0).randbytes(24 << 20)
    world.hub.create("alice/big", token=world.alice)
    world.hub.commit("alice/big", {"big.bin": data}, world.alice)
    return data


@pytest.fixture(scope="session")
def unworked(tmp_path_factory: pytest.TempPathFactory, library: Library) -> Iterator[RunningHub]:
    """A hub without a worker: the files of admin/landed stay as they were sent."""
    with running_hub(tmp_path_factory.mktemp("unworked") / "data") as hub:
        hub.create("admin/landed")
        hub.commit("admin/landed", library.tiny)
        yield hub


@pytest.fixture(params=NAMES)
def machine(
    request: pytest.FixtureRequest,
    environments: dict[str, Environment],
    world: World,
    tmp_path: Path,
) -> Machine:
    """alice's computer, with each client in turn."""
    return Machine(environments[request.param], tmp_path / "home", world.hub.url, world.alice)


@pytest.fixture(params=UPLOADERS)
def uploader(
    request: pytest.FixtureRequest,
    environments: dict[str, Environment],
    world: World,
    tmp_path: Path,
) -> Machine:
    """alice's computer, with each client and each way in which it sends large files."""
    client, _, way = request.param.partition("-by-")
    settings = {"HF_HUB_DISABLE_XET": "1"} if way == "lfs" else {}
    return Machine(environments[client], tmp_path / "home", world.hub.url, world.alice, settings)


@pytest.fixture
def newest(environments: dict[str, Environment], world: World, tmp_path: Path) -> Machine:
    """alice's computer with the newest client."""
    return Machine(environments[NEWEST], tmp_path / "home", world.hub.url, world.alice)


@pytest.fixture
def name() -> str:
    """A repository of alice's that no other test knows, and that is not there yet."""
    return f"alice/repository-{next(_numbers)}"
