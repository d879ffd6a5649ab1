"""Administrators of a model change who reads it, and delete it, by its settings."""

import torch

from support.models.model_folders import base_tensors, tuned_tensors
from support.models.tiny_models import to_file
from support.registry.ingested import push_ingested
from support.web.model_family import World


def test_a_model_becomes_private_and_public_again(world: World) -> None:
    world.hub.create("admin/shown")
    world.hub.commit("admin/shown", {"a.txt": b"a"})
    at = "/admin/shown/settings"
    for visibility, status in (("private", 404), ("public", 200), ("public", 200)):
        done = world.admins.post(f"{at}/visibility", {"visibility": visibility}, at=at)
        assert (done.status, done.headers["Location"]) == (303, at)
        assert world.stranger.get("/admin/shown").status == status
    wrong = world.admins.post(f"{at}/visibility", {"visibility": "secret"}, at=at)
    assert wrong.status == 422
    assert "choose public or private" in wrong.one("div", role="alert").text


def test_a_model_is_deleted_only_by_its_typed_name(world: World) -> None:
    world.hub.create("admin/gone")
    at = "/admin/gone/settings"
    for typed in ("", "gone", "admin/Gone"):
        kept = world.admins.post(f"{at}/delete", {"name": typed}, at=at)
        assert kept.status == 422
        assert "type admin/gone" in kept.one("div", role="alert").text
        assert world.stranger.get("/admin/gone").status == 200
    done = world.admins.post(f"{at}/delete", {"name": "admin/gone"}, at=at)
    assert (done.status, done.headers["Location"]) == (303, "/admin")
    assert world.stranger.get("/admin/gone").status == 404


def test_a_base_of_others_waits_for_a_job_that_the_page_names(world: World) -> None:
    reg = world.hub.registry
    base = {"model.safetensors": to_file(base_tensors(torch.float16))}
    tuned = {"model.safetensors": to_file(tuned_tensors(1e-4, torch.float16))}
    push_ingested(reg, world.admin, "admin/kept-base", base)
    push_ingested(reg, world.admin, "lab/needs-it", tuned, base="admin/kept-base")
    at = "/admin/kept-base/settings"
    waits = world.admins.post(f"{at}/delete", {"name": "admin/kept-base"}, at=at)
    assert waits.status == 202, waits.text
    (job,) = [link for link in waits.links if link.startswith("/-/jobs/")]
    state = world.hub.call("GET", f"/v1{job.removeprefix('/-')}", token=world.hub.admin_token)
    assert state.json()["kind"] == "withdraw"
    assert world.stranger.get("/admin/kept-base").status == 200


def test_others_see_no_settings(world: World) -> None:
    assert world.user.get("/lab/base/settings").status == 403
    answer = world.stranger.get("/lab/base/settings")
    assert answer.status == 303
    assert answer.headers["Location"].startswith("/-/login?next=")
    for browser in (world.user, world.stranger):
        assert "/lab/base/settings" not in browser.get("/lab/base").links
    refused = world.user.post("/lab/base/settings/delete", {"name": "lab/base"}, at="/")
    assert refused.status == 403
    assert world.stranger.get("/lab/base").status == 200


def test_a_form_of_another_site_changes_nothing(world: World) -> None:
    cookie = world.admins.session
    answer = world.hub.call(
        "POST", "/lab/base/settings/delete", body=b"name=lab/base",
        headers={"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"},
    )  # fmt: skip
    assert answer.status == 403
    assert world.stranger.get("/lab/base").status == 200
