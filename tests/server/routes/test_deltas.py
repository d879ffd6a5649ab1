"""Uploads by tensor over HTTP, with a real worker: query, packs, recipes; and frames out."""

from collections.abc import Iterator
from hashlib import sha256

import pytest

from deltahub.codecs.files.recipe import Recipe, TensorRef
from deltahub.codecs.frames import FrameHeader, parse_header
from deltahub.codecs.ids import tensor_id
from support.models.tiny_models import base, finetune, to_file
from support.service.client_door import pack_and_recipe
from support.service.hub import RunningHub, running_hub

BASE = to_file(base())
FINE = to_file(finetune(1e-4))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """A hub with an ingested public base: admin/base."""
    folder = tmp_path_factory.mktemp("deltas")
    with running_hub(folder / "data", with_worker=True) as running:
        push(running, "admin/base", {"model.safetensors": BASE})
        yield running


def push(hub: RunningHub, name: str, files: dict[str, bytes], token: str | None = None) -> None:
    """A public repository with these files, ingested."""
    hub.create(name, token=token)
    job = hub.wait_for_job(hub.commit(name, files, token=token)["job_id"])
    assert (job["state"], job["error"]) == ("done", None)


def recipe_of(hub: RunningHub, name: str, path: str = "model.safetensors") -> Recipe:
    answer = hub.call("GET", f"/v1/repositories/{name}/recipe-bytes/{path}", token=hub.admin_token)
    assert answer.status == 200
    return Recipe.from_bytes(answer.body)


def split(frames: bytes) -> Iterator[tuple[FrameHeader, bytes]]:
    position = 0
    while position < len(frames):
        header = parse_header(memoryview(frames)[position:])
        yield header, frames[position : position + header.frame_length]
        position += header.frame_length


def test_a_recipe_says_how_to_rebuild_the_file(hub: RunningHub) -> None:
    answer = hub.call("GET", "/v1/repositories/admin/base/recipes/model.safetensors")
    assert answer.status == 200
    plan = answer.json()
    assert (plan["size"], plan["sha256"]) == (len(BASE), sha256(BASE).hexdigest())
    recipe = recipe_of(hub, "admin/base")
    assert recipe.id.hex() == plan["recipe"]
    assert recipe.sha256 == sha256(BASE).digest()
    named = {segment.tensor.hex() for segment in recipe.segments if isinstance(segment, TensorRef)}
    assert {tensor["id"] for tensor in plan["tensors"]} == named
    assert all(tensor["encoded_size"] > 0 for tensor in plan["tensors"])
    assert [tensor["bases"] for tensor in plan["tensors"]] == [[]] * len(plan["tensors"])


def test_frames_come_back_to_back_in_the_order_asked(hub: RunningHub) -> None:
    plan = hub.call("GET", "/v1/repositories/admin/base/recipes/model.safetensors").json()
    wanted = [tensor["id"] for tensor in reversed(plan["tensors"])]
    answer = hub.call("POST", "/v1/repositories/admin/base/frames", body={"tensors": wanted})
    assert answer.status == 200
    total = sum(tensor["encoded_size"] for tensor in plan["tensors"])
    assert int(answer.headers["Content-Length"]) == len(answer.body) == total
    frames = list(split(answer.body))
    assert [header.tensor.hex() for header, _ in frames] == wanted


def test_frames_of_tensors_elsewhere_are_absent(hub: RunningHub) -> None:
    push(hub, "admin/other", {"notes.txt": b"other" * 1000})
    other = next(
        segment.tensor.hex()
        for segment in recipe_of(hub, "admin/other", "notes.txt").segments
        if isinstance(segment, TensorRef)
    )
    for tensors in ([other], ["ab" * 32]):
        body = {"tensors": tensors}
        answer = hub.call("POST", "/v1/repositories/admin/base/frames", body=body)
        assert (answer.status, answer.code) == (404, "tensor_not_found")


def test_a_fine_tune_goes_in_as_frames_and_comes_back_whole(hub: RunningHub) -> None:
    hub.create("admin/fine")
    path = "/v1/repositories/admin/fine"
    token = hub.admin_token
    recipe_of_base = recipe_of(hub, "admin/base")
    named = [s for s in recipe_of_base.segments if isinstance(s, TensorRef)]
    body = {"tensors": [[s.tensor.hex(), s.size] for s in named] + [["cd" * 32, 7]]}
    answer = hub.call("POST", f"{path}/tensors/query", token=token, body=body)
    assert set(answer.json()["have"]) == {s.tensor.hex() for s in named}

    pack, recipe = pack_and_recipe(FINE, BASE)
    assert len(pack) < len(FINE)
    answer = hub.call("POST", f"{path}/recipes", token=token, body=recipe)
    assert (answer.status, answer.code) == (404, "tensor_not_found")
    body = {"sha256": hub.upload(pack)}
    answer = hub.call("POST", f"{path}/packs", token=token, body=body)
    assert answer.status == 200, answer.body
    assert answer.json()["waiting"] == 0

    answer = hub.call("POST", f"{path}/recipes", token=token, body=recipe)
    assert (answer.status, answer.json()["state"]) == (202, "proving")
    job = hub.wait_for_job(answer.json()["job_id"])
    assert (job["state"], job["result"]) == ("done", {"sha256": sha256(FINE).hexdigest()})
    again = hub.call("POST", f"{path}/recipes", token=token, body=recipe)
    assert (again.status, again.json()) == (200, {"state": "ready", "job_id": None})

    operation = {
        "op": "add",
        "path": "model.safetensors",
        "sha256": sha256(FINE).hexdigest(),
        "size": len(FINE),
    }
    body = {"operations": [operation], "base": "admin/base"}
    made = hub.call("POST", f"{path}/commits", token=token, body=body)
    assert made.status == 201, made.body
    assert hub.call("GET", f"{path}/files/model.safetensors").body == FINE
    middle = hub.call(
        "GET", f"{path}/files/model.safetensors", headers={"Range": "bytes=100001-200002"}
    )
    assert middle.body == FINE[100001:200003]

    info = hub.call("GET", f"{path}/info").json()
    assert info["totals"]["size"] == len(FINE)
    assert info["totals"]["own"] < len(FINE) * 0.8
    assert info["base"]["declared"] == "admin/base"
    assert info["base"]["declared_status"] == "resolved"
    assert {tensor["codec"] for tensor in info["files"][0]["tensors"]} >= {"fm_delta"}


def test_naming_a_private_tensor_gives_nothing_away(hub: RunningHub) -> None:
    owner, thief = hub.user("victim"), hub.user("thief")
    secret = to_file(finetune(1e-3))
    hub.create("victim/secret", private=True, token=owner)
    made = hub.commit("victim/secret", {"model.safetensors": secret}, token=owner)
    assert hub.wait_for_job(made["job_id"], owner)["state"] == "done"
    hub.create("thief/loot", token=thief)
    path = "/v1/repositories/thief/loot"

    owned = Recipe.from_bytes(pack_and_recipe(secret, BASE)[1])
    ids = [[s.tensor.hex(), s.size] for s in owned.segments if isinstance(s, TensorRef)]
    answer = hub.call("POST", f"{path}/tensors/query", token=thief, body={"tensors": ids})
    assert answer.json() == {"have": []}

    # Frames that are deltas of the secret: decoding them would return its unchanged bytes.
    pack, _ = pack_and_recipe(to_file(finetune(2e-4)), secret)
    body = {"sha256": hub.upload(pack, thief)}
    answer = hub.call("POST", f"{path}/packs", token=thief, body=body)
    assert (answer.status, answer.code) == (422, "invalid_frame")
    # A recipe of the secret's tensors.
    answer = hub.call("POST", f"{path}/recipes", token=thief, body=owned.to_bytes())
    assert (answer.status, answer.code) == (404, "tensor_not_found")
    # A commit of the secret's SHA-256, as if the thief had uploaded it.
    operation = {
        "op": "add",
        "path": "stolen",
        "sha256": sha256(secret).hexdigest(),
        "size": len(secret),
    }
    answer = hub.call("POST", f"{path}/commits", token=thief, body={"operations": [operation]})
    assert (answer.status, answer.code) == (404, "upload_not_found")


def test_what_is_no_pack_or_recipe_is_refused(hub: RunningHub) -> None:
    hub.create("admin/junk")
    path = "/v1/repositories/admin/junk"
    for junk in (b"", b"DHPK", b"\0" * 1000, pack_and_recipe(FINE, BASE)[0][:-1]):
        body = {"sha256": hub.upload(junk)}
        answer = hub.call("POST", f"{path}/packs", token=hub.admin_token, body=body)
        assert (answer.status, answer.code) == (422, "invalid_frame"), answer.body
        if junk:
            answer = hub.call("POST", f"{path}/recipes", token=hub.admin_token, body=junk)
            assert (answer.status, answer.code) == (422, "invalid_frame"), answer.body
    answer = hub.call("POST", f"{path}/packs", token=hub.admin_token, body={"sha256": "ab" * 32})
    assert (answer.status, answer.code) == (404, "upload_not_found")
    answer = hub.call("POST", f"{path}/recipes", body=b"x")
    assert (answer.status, answer.code) == (401, "unauthorized")


def test_a_recipe_that_lies_about_its_hash_fails_its_job(hub: RunningHub) -> None:
    hub.create("admin/liar")
    honest = recipe_of(hub, "admin/base")
    lie = Recipe(honest.size, b"\1" * 32, honest.kind, honest.segments).to_bytes()
    path = "/v1/repositories/admin/liar"
    answer = hub.call("POST", f"{path}/recipes", token=hub.admin_token, body=lie)
    assert answer.status == 202
    job = hub.wait_for_job(answer.json()["job_id"])
    assert (job["state"], job["error"]["code"]) == ("failed", "hash_mismatch")
    operation = {"op": "add", "path": "x", "sha256": "01" * 32, "size": honest.size}
    body = {"operations": [operation]}
    answer = hub.call("POST", f"{path}/commits", token=hub.admin_token, body=body)
    assert (answer.status, answer.code) == (404, "upload_not_found")


def test_a_fine_tune_that_came_before_its_base_shrinks_when_the_base_arrives(
    hub: RunningHub,
) -> None:
    early, late = to_file(finetune(1e-5, seed=5)), to_file(base(seed=5))
    hub.create("admin/early")
    made = hub.commit("admin/early", {"model.safetensors": early}, base="admin/late")
    assert hub.wait_for_job(made["job_id"])["state"] == "done"
    path = "/v1/repositories/admin/early/info"
    before = hub.call("GET", path).json()
    assert before["base"]["declared_status"] == "absent"
    push(hub, "admin/late", {"model.safetensors": late})
    pending = hub.call("GET", path, token=hub.admin_token).json()["base"]["pending_job_id"]
    if pending is not None:
        assert hub.wait_for_job(pending)["state"] == "done"
    after = hub.call("GET", path).json()
    assert after["totals"]["own"] < before["totals"]["own"] * 0.7
    measured = after["base"]["measured"]
    assert [edge["repository"] for edge in measured] == ["admin/late"]
    answer = hub.call("GET", "/v1/repositories/admin/early/files/model.safetensors")
    assert answer.body == early


def test_a_tensors_id_is_the_hash_of_its_bytes(hub: RunningHub) -> None:
    recipe = recipe_of(hub, "admin/base")
    position = 0
    for segment in recipe.segments:
        if isinstance(segment, TensorRef):
            assert tensor_id(BASE[position : position + segment.size]) == segment.tensor
        position += segment.size
    assert position == len(BASE)
