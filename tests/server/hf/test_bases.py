"""Bases shown to Hugging Face clients: named by card, declared by push, measured from weights."""

from collections.abc import Iterator

import pytest

from deltahub.registry.access.repositories import find_repository
from support.models.tiny_models import base, finetune, to_file
from support.service.hub import RunningHub, running_hub

PATH = "model.safetensors"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("bases") / "data", with_worker=True) as running:
        yield running


def push(hub: RunningHub, name: str, files: dict[str, bytes], **more: object) -> None:
    hub.create(name, private=bool(more.pop("private", False)))
    job = hub.wait_for_job(hub.commit(name, files, **more)["job_id"])
    assert (job["state"], job["error"]) == ("done", None)


def bases(hub: RunningHub, name: str, token: str | None = None) -> set[str]:
    tags = hub.call("GET", f"/api/models/{name}", token=token).json()["tags"]
    prefix = "base_model:"
    return {tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)}


def listed(hub: RunningHub, tag: str) -> list[str]:
    found = hub.call("GET", f"/api/models?filter=base_model:{tag}").json()
    return [model["id"] for model in found]


def test_what_a_card_says_wrongly_stands_beside_what_the_weights_say(hub: RunningHub) -> None:
    push(hub, "admin/hb-true", {PATH: to_file(base(seed=71))})
    push(hub, "admin/hb-wrong", {PATH: to_file(base(seed=72))})
    card = b"---\nbase_model: admin/hb-wrong\n---\n"
    push(hub, "admin/hb-tune", {PATH: to_file(finetune(1e-5, seed=71)), "README.md": card})
    declared = {"admin/hb-wrong", "finetune:admin/hb-wrong"}
    assert bases(hub, "admin/hb-tune") == declared | {"measured:admin/hb-true"}
    assert listed(hub, "measured:admin/hb-true") == ["admin/hb-tune"]
    assert listed(hub, "measured:admin/hb-wrong") == []
    assert bases(hub, "admin/hb-true") == set()
    info = hub.call("GET", "/v1/repositories/admin/hb-tune/info").json()["base"]
    assert (info["declared_status"], info["measured"][0]["repository"]) == (
        "unused", "admin/hb-true",
    )  # fmt: skip


def test_a_base_that_the_push_named_is_shown_where_no_card_names_one(hub: RunningHub) -> None:
    push(hub, "admin/hb-named", {PATH: to_file(base(seed=73))})
    tuned = to_file(finetune(1e-5, seed=73))
    push(hub, "admin/hb-silent", {PATH: tuned, "README.md": b"# silent"}, base="admin/hb-named")
    assert bases(hub, "admin/hb-silent") == {
        "admin/hb-named", "finetune:admin/hb-named", "measured:admin/hb-named",
    }  # fmt: skip
    info = hub.call("GET", "/api/models/admin/hb-silent").json()
    assert "cardData" not in info  # cardData shows only the file
    push(hub, "admin/hb-waits", {PATH: to_file(base(seed=74))}, base="admin/hb-nothing")
    assert bases(hub, "admin/hb-waits") == set()


def test_who_may_not_read_a_base_is_not_told_of_it(hub: RunningHub) -> None:
    push(hub, "admin/hb-secret", {PATH: to_file(base(seed=75))}, private=True)
    push(hub, "admin/hb-open", {PATH: to_file(finetune(1e-5, seed=75))}, private=True)
    assert bases(hub, "admin/hb-open", hub.admin_token) == {"measured:admin/hb-secret"}
    # Set in the database, because make_public would not leave this state. The private base must
    # not be shown to others.
    with hub.registry.db.write() as session:
        found = find_repository(session, "admin/hb-open")
        assert found is not None
        found.is_private = False
    assert bases(hub, "admin/hb-open", hub.admin_token) == {"measured:admin/hb-secret"}
    assert bases(hub, "admin/hb-open", hub.user("hb-stranger")) == set()
    assert bases(hub, "admin/hb-open") == set()
