"""A kit comes in by one door, and by no door does anything of it but facts go out."""

import json
import re
from typing import Any, Final

import pytest
from blake3 import blake3
from safetensors.torch import load

from deltahub.registry.adapters import kits
from deltahub.registry.db.models import Repository
from deltahub.registry.db.session import ReadSession
from deltahub.server.app import _ROUTERS
from deltahub.server.hf.app import create_hugging_face_app
from support.adapters.kits import MARK, discriminator, kit_json, weights
from support.models import tiny_models as tiny
from support.registry.opened import sha256_of
from support.service.hub import Answer, RunningHub
from support.web.pages import EVERY

FOUND: Final = discriminator()
CONFIG: Final = b'{"peft_type": "LORA"}'


def body_of(kit: dict[str, Any], found: bytes = FOUND) -> bytes:
    text = json.dumps(kit).encode()
    return len(text).to_bytes(4, "little") + text + found


@pytest.fixture
def who(hub: RunningHub, request: pytest.FixtureRequest) -> tuple[str, str]:
    """(a user's name, a token), with a base and an adapter."""
    name = f"u{abs(hash(request.node.name)) % 10**9}"
    token = hub.user(name)
    hub.create(f"{name}/base", token=token)
    hub.commit(f"{name}/base", {"model.safetensors": tiny.to_file(tiny.base())}, token)
    hub.create(f"{name}/adapter", token=token)
    push(hub, name, token, weights(1))
    return name, token


def push(hub: RunningHub, name: str, token: str, adapter: bytes) -> None:
    files = {"adapter_config.json": CONFIG, "adapter_model.safetensors": adapter}
    hub.commit(f"{name}/adapter", files, token, base=f"{name}/base")


def kit_of(hub: RunningHub, name: str, token: str, **options: Any) -> dict[str, Any]:
    head = hub.call("GET", f"/v1/repositories/{name}/base", token=token).json()["head"]
    return kit_json(weights(1), f"{name}/base@{head}", FOUND) | options


def put(hub: RunningHub, name: str, token: str, body: bytes, to: str = "adapter") -> Answer:
    path = f"/v1/repositories/{name}/{to}/adapter/kit"
    return hub.call("PUT", path, token=token, body=body)


def stored(hub: RunningHub, name: str) -> bytes:
    """The discriminator as a worker reads it."""

    def find(session: ReadSession) -> kits.StoredKit:
        own = session.query(Repository).filter_by(name="adapter").all()
        found = [kits.stored_kit(session, each.id) for each in own]
        return next(each for each in found if each and each.kit["base"].startswith(f"{name}/"))

    with hub.registry.db.read() as session:
        kit = find(session)
    return kits.read_discriminator(hub.registry, kit)


def test_a_kit_is_put_shown_and_deleted(hub: RunningHub, who: tuple[str, str]) -> None:
    name, token = who
    path = f"/v1/repositories/{name}/adapter/adapter/kit"
    assert put(hub, name, token, body_of(kit_of(hub, name, token))).status == 204
    assert stored(hub, name) == FOUND
    facts = hub.call("GET", path, token=token).json()
    assert (facts["name"], facts["auc"], facts["n_seeds"]) == ("digits", 0.91, 5)
    assert facts["is_current"]
    push(hub, name, token, weights(2))
    assert not hub.call("GET", path, token=token).json()["is_current"]
    for stranger in (None, hub.user(f"{name}-s")):
        for method in ("GET", "DELETE"):
            assert hub.call(method, path, token=stranger).status in (401, 403)
    assert hub.call("DELETE", path, token=token).status == 204
    assert hub.call("GET", path, token=token).code == "entry_not_found"


@pytest.mark.parametrize(
    ("options", "found", "status", "words"),
    [
        ({"base": f"x/other@{'0' * 40}"}, FOUND, 422, "the kit is for"),
        ({"adapter_sha256": "0" * 64}, FOUND, 409, "other weights"),
        ({"discriminator_sha256": "0" * 64}, FOUND, 422, "SHA-256"),
        ({"seeds": [{"input": MARK}, {"input": MARK}]}, FOUND, 422, "two seeds are the same"),
        ({"seeds": [{"input": MARK, "more": MARK}]}, FOUND, 422, "kit.json is refused"),
        ({"sketch": {"values": []}}, FOUND, 422, "sketch"),
        ({}, b"", 422, "no safetensors file"),
        ({}, tiny.to_file(tiny.base()), 422, "no LoRA"),
        ({}, weights(3), 422, "how PEFT loads it"),
    ],
)
def test_a_kit_that_does_not_fit_is_refused_and_not_repeated(
    hub: RunningHub, who: tuple[str, str], options: dict[str, Any], found: bytes, status: int,
    words: str,
) -> None:  # fmt: skip
    name, token = who
    body = body_of(kit_of(hub, name, token, **options), found)
    answer = put(hub, name, token, body)
    assert (answer.status, words in answer.message) == (status, True), answer.body
    assert MARK not in answer.message
    path = f"/v1/repositories/{name}/adapter/adapter/kit"
    assert hub.call("GET", path, token=token).status == 404


def test_a_body_that_is_cut_or_too_large_is_refused(hub: RunningHub, who: tuple[str, str]) -> None:
    name, token = who
    body = body_of(kit_of(hub, name, token))
    for cut in (0, 3, 200):
        assert put(hub, name, token, body[:cut]).code == "invalid_request"
    assert put(hub, name, token, (1 << 30).to_bytes(4, "little")).code == "limit_exceeded"
    assert put(hub, name, token, body[:-1]).code in ("invalid_request", "hash_mismatch")
    assert put(hub, name, token, body, to="base").code == "invalid_request"
    assert put(hub, name, hub.user(f"{name}-s"), body).status == 403


def test_no_door_gives_a_kit_away(hub: RunningHub, who: tuple[str, str]) -> None:
    name, token = who
    assert put(hub, name, token, body_of(kit_of(hub, name, token))).status == 204
    # Parts of the matrices; of what is shorter, the seeds, the base's tokenizer, the sketch.
    tensors = [each.numpy().tobytes() for each in load(FOUND).values()]
    secrets = [MARK.encode(), *(each[:24] for each in tensors), *(each.hex()[:48].encode()
               for each in tensors)]  # fmt: skip
    routes = [(f"/v1{each.path}", each) for one in _ROUTERS for each in one.router.routes]
    routes += [(each.path, each) for each in create_hugging_face_app(hub.server._hub).state.routes]
    paths = [path for path, route in routes if "GET" in route.methods]
    paths = [path for path in paths if not path.endswith("/events")]
    others = ("kit.json", "discriminator.safetensors", sha256_of(FOUND))
    asked = {filled_in(path, name, other) for path in paths for other in others}
    asked |= {f"/v1/admin/tables/{each}" for each in ("audit", "jobs", "namespaces", "packs")}
    asked |= {each for each in EVERY.values() if "{" not in each}
    asked |= {f"/{name}/adapter{each}" for each in ("", "/adapter", "/tree", "/use", "/settings")}
    n_shown = 0
    for path in sorted(asked):
        answer = hub.call("GET", path, token=hub.admin_token)
        n_shown += answer.status == 200
        assert not [each for each in secrets if each in answer.body], path
    assert n_shown > 30
    assert not [each for each in secrets if each in _log_of(hub, name)]


def filled_in(path: str, name: str, other: str) -> str:
    """A route's path with this adapter's names, and `other` for what else it takes."""
    names = {
        "namespace": name, "name": "adapter", "revision": "main", "ref": "main",
        "organization": name, "table": "audit",
    }  # fmt: skip
    return re.sub(r"{(\w+)(:path)?}", lambda found: names.get(found[1], other), path)


def _log_of(hub: RunningHub, name: str) -> bytes:
    return hub.call("GET", "/v1/admin/tables/audit", token=hub.admin_token).body


def test_who_knows_a_hash_gets_nothing_by_it(hub: RunningHub, who: tuple[str, str]) -> None:
    name, token = who
    assert put(hub, name, token, body_of(kit_of(hub, name, token))).status == 204
    digest, at = sha256_of(FOUND), f"/v1/repositories/{name}/adapter"
    known = {"files": [{"sha256": digest, "size": len(FOUND)}]}
    assert hub.call("POST", f"{at}/files/query", token=token, body=known).json()["have"] == []
    tensors = [each.numpy().tobytes() for each in load(FOUND).values()]
    asked = {"tensors": [[blake3(each).hexdigest(), len(each)] for each in tensors]}
    assert hub.call("POST", f"{at}/tensors/query", token=token, body=asked).json()["have"] == []
    add = {"op": "add", "path": "found", "sha256": digest, "size": len(FOUND)}
    answer = hub.call("POST", f"{at}/commits", token=token, body={"operations": [add]})
    assert answer.status >= 400
    frames = {"tensors": [each[0] for each in asked["tensors"]]}
    answer = hub.call("POST", f"{at}/frames", token=token, body=frames)
    assert answer.status >= 400
    assert hub.call("HEAD", f"/v1/uploads/{digest}", token=token).status == 404
