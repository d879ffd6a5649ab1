"""A stranger who knows every hash of a private model gets nothing of it by HTTP.

Forged frames, and frames that decode to too much, break nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deltahub.codecs import DType
from deltahub.codecs.files.recipe import Recipe, TensorRef
from deltahub.codecs.frames import BasePlan, BaseSegment, FrameRange, TensorSpec, encode_frame
from deltahub.codecs.ids import tensor_id
from deltahub.registry.maintenance.fsck.run import fsck
from support.codecs.frames import forge_header, forge_segments, table_of
from support.registry.client_packs import file_of, frames_of, near, pack_of, weights
from support.registry.opened import sha256_of
from support.service.hub import Answer, RunningHub, running_hub

COUNT = 40_000
SECRET = weights(COUNT, seed=71)
ABSENT = weights(COUNT, seed=72)
OPEN = weights(COUNT, seed=73)
BOMB_LIMIT = 200 << 20


@dataclass(frozen=True)
class Thief:
    """A user who writes to a repository of their own, and may not read the victim's."""

    hub: RunningHub
    token: str
    name: str

    def post(self, what: str, body: Any) -> Answer:
        path = f"/v1/repositories/{self.name}/{what}"
        return self.hub.call("POST", path, token=self.token, body=body)

    def send(self, *frames: bytes) -> Answer:
        return self.post("packs", {"sha256": self.hub.upload(pack_of(frames), self.token)})

    def has(self, data: bytes) -> bool:
        answer = self.post("tensors/query", {"tensors": [[tensor_id(data).hex(), len(data)]]})
        assert answer.status == 200, answer.body
        return bool(answer.json()["have"])

    def commit(self, data: bytes) -> Answer:
        add = {"op": "add", "path": "a.bin", "sha256": sha256_of(data), "size": len(data)}
        return self.post("commits", {"operations": [add]})


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """A hub with a private and a public model of `victim`; fsck must be clean afterwards."""
    folder: Path = tmp_path_factory.mktemp("theft")
    with running_hub(folder / "data", with_worker=True, max_decoded_bytes=BOMB_LIMIT) as running:
        owner = running.user("victim")
        for name, data, is_private in (
            ("victim/secret", SECRET, True),
            ("victim/open", OPEN, False),
        ):
            running.create(name, private=is_private, token=owner)
            made = running.commit(name, {"a.bin": data}, token=owner)
            assert running.wait_for_job(made["job_id"], owner)["state"] == "done"
        yield running
        assert list(fsck(running.registry, read_data=True)) == []


@pytest.fixture(scope="module")
def token(hub: RunningHub) -> str:
    return hub.user("thief")


@pytest.fixture(params=["public", "private"])
def thief(hub: RunningHub, token: str, request: pytest.FixtureRequest) -> Thief:
    name = f"thief/{request.param}"
    body = {"name": name, "private": request.param == "private"}
    hub.call("POST", "/v1/repositories", token=token, body=body)
    return Thief(hub, token, name)


def unchanged(base: bytes, tensor: bytes) -> bytes:
    """A frame that claims that `tensor` equals `base`; its own checksums are right."""
    spec = TensorSpec(tensor_id(ABSENT), DType.BF16, 1, COUNT)
    plan = BasePlan((BaseSegment(tensor_id(OPEN), DType.BF16, 0, COUNT),), is_cast=False)
    frame = encode_frame(spec, FrameRange(0, COUNT, 1, COUNT), OPEN, OPEN, plan, "fm_delta")
    assert {mode for _, mode, _ in table_of(frame)} == {0}
    segment = forge_segments((tensor_id(base), DType.BF16.code, 0, COUNT))
    return forge_header(frame, segments=segment, tensor=tensor_id(tensor))


def test_an_unchanged_frame_against_a_private_tensor_is_refused_like_an_absent_base(
    thief: Thief,
) -> None:
    messages = []
    for base in (SECRET, ABSENT):
        answer = thief.send(unchanged(base, b"\0" * len(base)))
        assert (answer.status, answer.code) == (422, "invalid_frame")
        assert "not here for you" in answer.message
        messages.append(answer.message.replace(tensor_id(base).hex(), "<base>"))
    assert messages[0] == messages[1]


def test_claiming_to_be_the_private_tensor_needs_its_bytes(thief: Thief) -> None:
    for frame in (
        unchanged(OPEN, SECRET),
        forge_header(frames_of(OPEN)[0], tensor=tensor_id(SECRET)),
    ):
        answer = thief.send(frame)
        assert (answer.status, answer.code) == (422, "invalid_frame")
    assert not thief.has(SECRET)


def test_a_recipe_that_names_a_private_tensor_is_refused_like_an_absent_one(thief: Thief) -> None:
    messages = []
    for data in (SECRET, ABSENT):
        # By itself, and after a tensor that the caller may read.
        for parts in ([data], [OPEN, data]):
            answer = thief.post("recipes", file_of(parts)[1])
            assert (answer.status, answer.code) == (404, "tensor_not_found")
            messages.append(answer.message.replace(tensor_id(data).hex(), "<tensor>"))
    assert messages[:2] == messages[2:]


def test_a_commit_that_names_a_private_file_is_refused_like_an_absent_one(thief: Thief) -> None:
    messages = []
    for data in (SECRET, ABSENT):
        wanted = [{"sha256": sha256_of(data), "size": len(data)}]
        answer = thief.post("files/query", {"files": wanted})
        assert (answer.status, answer.json()) == (200, {"have": []})
        answer = thief.commit(data)
        assert (answer.status, answer.code) == (404, "upload_not_found")
        messages.append(answer.message.replace(sha256_of(data), "<file>"))
    assert messages[0] == messages[1]


def test_frames_of_a_private_tensor_are_not_handed_out(thief: Thief) -> None:
    assert thief.hub.commit(thief.name, {"b.bin": b"mine"}, token=thief.token)["commit"]
    for data in (SECRET, ABSENT):
        answer = thief.post("frames", {"tensors": [tensor_id(data).hex()]})
        assert (answer.status, answer.code) == (404, "tensor_not_found")
    answer = thief.hub.call("GET", "/v1/repositories/victim/secret/files/a.bin", token=thief.token)
    assert (answer.status, answer.code) == (404, "repository_not_found")


def test_who_has_the_bytes_may_send_them_and_learns_nothing_by_it(thief: Thief) -> None:
    assert not thief.has(SECRET)
    assert thief.send(*frames_of(SECRET)).status == 200
    assert thief.has(SECRET)


def test_a_frame_against_the_wrong_base_is_refused(thief: Thief) -> None:
    tuned = near(OPEN, seed=4)
    frame = frames_of(tuned, near(OPEN, seed=5))[0]
    segment = forge_segments((tensor_id(OPEN), DType.BF16.code, 0, COUNT))
    answer = thief.send(forge_header(frame, segments=segment))
    assert (answer.status, answer.code) == (422, "invalid_frame")
    assert tensor_id(tuned).hex() in answer.message
    assert not thief.has(tuned)
    assert thief.send(*frames_of(tuned, OPEN)).status == 200


def test_a_pack_that_explodes_is_refused_unread(thief: Thief) -> None:
    """Less than 100 kB of valid frames that would decode to more than the limit."""
    frames = [frame for i in range(4) for frame in frames_of(bytes((64 << 20) - 2 * i))]
    pack = pack_of(frames)
    assert len(pack) < 100_000
    answer = thief.post("packs", {"sha256": thief.hub.upload(pack, thief.token)})
    assert (answer.status, answer.code) == (413, "limit_exceeded")
    assert str(BOMB_LIMIT) in answer.message


def test_a_frame_that_decodes_to_more_than_it_says_is_refused(thief: Thief) -> None:
    frame = frames_of(bytes(2 << 20))[0]
    small = forge_header(frame, count=1 << 19, columns=1 << 19, tensor_count=1 << 19)
    answer = thief.send(small)
    assert (answer.status, answer.code) == (422, "invalid_frame")


def test_a_recipe_that_repeats_a_tensor_for_ever_is_refused(thief: Thief) -> None:
    ref = TensorRef(tensor_id(OPEN), len(OPEN), "BF16", (COUNT,), None)
    n = BOMB_LIMIT // len(OPEN) + 2
    recipe = Recipe(n * len(OPEN), bytes(32), "opaque", (ref,) * n)
    answer = thief.post("recipes", recipe.to_bytes())
    assert (answer.status, answer.code) == (413, "limit_exceeded")
    assert "repeats" in answer.message
