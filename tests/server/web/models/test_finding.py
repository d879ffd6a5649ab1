"""Models are found by what they are: alike by the page, the API, the SDK and the command line."""

import re
from typing import Any

import pytest

from deltahub.client.errors import InvalidArgument, NotFound
from deltahub.client.hub import Hub
from deltahub.registry.quotas.usage import measure
from support.service.client_process import Finished, deltahub
from support.web.model_family import World

SOME = [
    ({}, {"base", "chat", "chat-lora", "code", "merge"}),
    ({"words": "chat"}, {"chat", "chat-lora"}),
    ({"role": "adapter"}, {"chat-lora"}),
    ({"role": "base"}, {"base"}),
    ({"role": "finetune"}, {"chat", "code"}),
    ({"role": "merge"}, {"merge"}),
    ({"dtype": "BF16", "role": "base"}, {"base"}),
    ({"dtype": "F64"}, set()),
    ({"base": "lab/base"}, {"chat", "code", "chat-lora", "merge"}),  # the last by its weights
    ({"tags": ("license:mit",)}, {"chat", "code"}),
    ({"parameters": (1e9, None)}, set()),
]
FIELDS = {"words": "q", "tags": "tag"}


@pytest.mark.parametrize(("query", "names"), SOME)
def test_the_sdk_finds_what_the_page_finds(
    world: World, query: dict[str, Any], names: set[str]
) -> None:
    with Hub(world.hub.url) as hub:
        found = hub.search(namespace="lab", **query)
    assert {each.name for each in found} == {f"lab/{name}" for name in names}
    if "parameters" in query:
        query = {"least": "1B"}
    fields = {FIELDS.get(key, key): value for key, value in query.items()}
    text = "&".join(f"{key}={value[0] if isinstance(value, tuple) else value}"
                    for key, value in fields.items())  # fmt: skip
    page = world.stranger.get(f"/lab?{text}")
    assert {each.text.strip() for each in page.all("a", class_="model-name")} == {
        f"lab/{name}" for name in names
    }


def test_the_largest_and_the_most_saved_come_first(world: World) -> None:
    with world.hub.registry.db.write() as session:
        for number in range(1, 7):
            measure(session, number)
    with Hub(world.hub.url) as hub:
        sizes = [each.logical_bytes or 0 for each in hub.search(sort="size", namespace="lab")]
        saved = [(each.logical_bytes or 0) - (each.stored_bytes or 0)
                 for each in hub.search(sort="saved", namespace="lab")]  # fmt: skip
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > 0
    with Hub(world.hub.url) as hub:
        names = [each.name for each in hub.search(sort="saved", namespace="lab")]
    page = world.stranger.get("/lab?sort=saved").body
    assert re.findall(r'class="model-name" href="/([^"]+)"', page) == names


def test_the_family_of_a_model_is_told_without_private_ones(world: World) -> None:
    with Hub(world.hub.url) as hub:
        found = hub.lineage("lab/base")
        with pytest.raises(NotFound):
            hub.lineage("lab/secret")
    relations = {each.name: (each.layer, each.relation) for each in found.models}
    assert relations["lab/base"][0] == 0
    assert relations["lab/chat-lora"] == (1, "adapter")
    assert "lab/secret" not in relations
    (link,) = [each for each in found.links if each.child == "lab/chat"]
    assert (link.parent, link.declared) == ("lab/base", True)
    assert link.share
    assert link.share > 0.5
    with Hub(world.hub.url, world.hub.admin_token) as hub:
        assert "lab/secret" in {each.name for each in hub.lineage("lab/base").models}


def test_the_commands_tell_the_same(world: World) -> None:
    def run(*arguments: str) -> Finished:
        told = deltahub(*arguments, environment={"DELTAHUB_URL": world.hub.url})
        assert told.status == 0, told.err
        return told

    found = run("search", "CHAT", "--role", "adapter", "--json").json()
    assert [each["name"] for each in found["items"]] == ["lab/chat-lora"]
    assert "adapter" in run("search", "--sort", "size", "--namespace", "lab").out
    assert "no model matches" in run("search", "nowhere").out
    assert "declared" in run("lineage", "lab/base").out


@pytest.mark.parametrize("query", ["sort=colour", "limit=0", "limit=101", "min_parameters=-1",
                                   "cursor=x", "min_parameters=nan",
                                   "max_parameters=inf", "max_parameters=1e400", "role=xyz",
                                   "dtype=bf16", "search=" + "a+" * 21])  # fmt: skip
def test_wrong_questions_are_refused(world: World, query: str) -> None:
    assert world.hub.call("GET", f"/v1/models?{query}").status == 422


def test_no_models_are_asked_for(world: World) -> None:
    with Hub(world.hub.url) as hub, pytest.raises(InvalidArgument):
        hub.search(limit=0)
