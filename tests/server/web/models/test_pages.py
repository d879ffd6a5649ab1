"""Pages of models show what is there, and their addresses lead where they say."""

import json
import re
from urllib.parse import quote

import pytest

from support.web.model_family import World
from support.web.page_reader import Page

PAGES = (
    "", "/tree/main", "/blob/main/README.md", "/blob/main/model.safetensors", "/commits/main",
    "/commit/main", "/refs", "/lineage", "/use", "/tensors/main",
)  # fmt: skip


@pytest.mark.parametrize("name", ["base", "chat", "chat-lora", "merge"])
def test_every_page_of_every_kind_of_model_opens_for_everybody(world: World, name: str) -> None:
    for place in PAGES:
        if name == "chat-lora" and place.startswith("/blob"):
            place = "/blob/main/adapter_model.safetensors"
        for browser in (world.stranger, world.user, world.admins):
            page = browser.get(f"/lab/{name}{place}")
            assert page.status == 200, (place, page.text[:300])
            assert "style" not in {key for each in page.elements for key in each.attributes}
            assert len(page.all("h1")) == 1, place


def test_every_link_of_a_page_opens(world: World) -> None:
    seen: set[str] = set()
    for place in ("/", "/lab", *(f"/lab/base{place}" for place in PAGES)):
        for link in world.admins.get(place).links:
            # The other pages of the hub are not these tests' subject.
            is_ours = link.startswith(("/lab", "/?")) and "/compare" not in link
            if is_ours and link not in seen:
                seen.add(link)
                assert world.admins.fetch(link).status in (200, 307), (place, link)
    assert len(seen) > 40


def test_the_card_stands_beside_what_the_model_is(world: World) -> None:
    page = world.stranger.get("/lab/base")
    card = page.one("article")
    assert "The base" in card.text
    assert page.one("h2", id="card-the-base")
    (image,) = [each for each in page.all("img") if "plot" in each.attributes["src"]]
    assert image.attributes["src"] == "/lab/base/resolve/main/figures/plot.png"
    assert "/lab/base/blob/main/config.json" in page.links
    facts = page.one("aside").text
    assert "BF16" in facts
    assert "apache-2.0" in facts
    assert "2 commits" in facts
    assert {each.text for each in page.all("a", class_="chip")} >= {"text-generation", "en", "tiny"}
    assert page.all("button", data_copy="deltahub pull lab/base")
    assert "Fine-tune of" in world.stranger.get("/lab/chat").one("aside").text
    assert "Adapter of" in world.stranger.get("/lab/chat-lora").one("aside").text
    assert "Merge of" in world.stranger.get("/lab/merge").one("aside").text


def test_files_say_how_they_are_stored_and_who_changed_them_last(world: World) -> None:
    rows = _rows(world.stranger.get("/lab/base/tree/main"))
    assert [row.split()[0] for row in rows] == [
        "README.md", "config.json", "figures", "model.safetensors",
    ]  # fmt: skip
    assert "delta of earlier revisions" in rows[3] or "whole" in rows[3]
    assert "LFS" in rows[3]
    of_chat = _rows(world.stranger.get("/lab/chat/tree/main"))
    assert "delta of lab/base" in of_chat[1]
    inside = world.stranger.get("/lab/base/tree/main/figures")
    assert "plot.png" in _rows(inside)[1]
    assert "/lab/base/tree/main" in inside.links
    assert world.stranger.get("/lab/base/tree/main/none").status == 404
    # A path of the wrong kind leads to the page of the right one.
    for wrong, right in (("tree/main/config.json", "blob/main/config.json"),
                         ("blob/main/figures", "tree/main/figures")):  # fmt: skip
        answer = world.stranger.fetch(f"/lab/base/{wrong}")
        assert (answer.status, answer.headers["Location"]) == (307, f"/lab/base/{right}")


def test_a_file_of_another_model_is_shared(world: World) -> None:
    rows = _rows(world.stranger.get("/lab/merge/tree/main"))
    assert "shared" not in rows[1], "who may not read the other model does not learn of it"
    assert "shared" not in _rows(world.user.get("/lab/merge/tree/main"))[1]


def test_texts_pictures_json_and_headers_are_shown(world: World) -> None:
    config = world.stranger.get("/lab/base/blob/main/config.json")
    assert len(config.all("span", class_="line")) == 6, "formatted: a line for each value"
    plain = world.stranger.get("/lab/base/blob/main/config.json?plain=true")
    assert len(plain.all("span", class_="line")) == 1
    picture = world.stranger.get("/lab/base/blob/main/figures/plot.png")
    assert picture.all("img", src="/lab/base/resolve/main/figures/plot.png")
    header = world.stranger.get("/lab/base/blob/main/model.safetensors")
    assert "model.0.embedding.weight" in header.text
    source = world.stranger.get("/lab/base/blob/main/README.md?plain=true")
    assert "license: apache-2.0" in source.text
    download = world.stranger.fetch("/lab/base/resolve/main/config.json")
    assert download.json()["model_type"] == "tiny"


def test_a_commit_shows_lines_and_tensors_that_changed(world: World) -> None:
    log = world.stranger.get("/lab/base/commits/main")
    assert len(log.all("li", class_="commit")) == 2
    page = world.stranger.get("/lab/base/commit/main")
    assert [each.text.strip() for each in page.all("span", class_="line") if
            "removed" in each.attributes["class"]]  # fmt: skip
    assert "strong" in "".join(each.text for each in page.all("span", class_="added"))
    assert "1 tensors added, 1 removed, 1 changed, 10 the same" in page.text
    first = world.stranger.get(next(link for link in page.links if "/commit/" in link))
    assert "the first of its branch" in first.text
    assert len(first.all("section", class_="change")) == 4
    assert world.stranger.get("/lab/base/commit/" + "0" * 40).status == 404


def test_tensors_are_sorted_filtered_and_totalled(world: World) -> None:
    def names(query: str) -> list[str]:
        page = world.stranger.get(f"/lab/chat/tensors/main{query}")
        return [each.text for each in page.all("td", class_="tensor-name")]

    assert len(names("")) == 12
    assert names("?sort=name") == sorted(names(""))
    assert names("?sort=name&down=true") == sorted(names(""), reverse=True)
    assert names("?sort=size&down=true")[0].endswith("up.weight")
    assert names("?q=BIAS+1.") == ["model.1.down.bias", "model.1.up.bias"]
    assert names("?q=none") == names("?page=7") == []
    for column in ("dtype", "shape", "codec", "stored", "ratio"):
        assert sorted(names(f"?sort={column}")) == sorted(names(""))
    assert world.stranger.get("/lab/chat/tensors/main?sort=colour").status == 422


def test_lineage_tells_declared_from_measured_and_shows_only_what_one_may_read(
    world: World,
) -> None:
    page = world.stranger.get("/lab/base/lineage")
    items = {each.attributes["data-model"]: each.text for each in page.all("li", class_="depth-1")}
    assert set(items) >= {"lab/chat", "lab/code", "lab/chat-lora"}
    assert "declared, measured" in items["lab/chat"]
    assert "adapter, declared" in items["lab/chat-lora"]
    assert page.all("li", class_="depth-2", data_model="lab/merge")
    assert page.all("li", class_="depth-0", data_model="lab/base")
    assert "lab/secret" not in page.body
    assert "lab/secret" in world.admins.get("/lab/base/lineage").body
    nodes = page.one("svg", class_="graph").text
    assert "merge" in nodes
    assert "secret" not in nodes


def test_snippets_name_this_hub_and_a_token_where_one_is_needed(world: World) -> None:
    page = world.stranger.get("/lab/chat/use")
    code = "\n".join(each.attributes["data-copy"] for each in page.all("button", class_="copy"))
    for word in (f"DELTAHUB_URL={world.hub.url}", f"HF_ENDPOINT={world.hub.url}", "vllm serve",
                 "from transformers import", "snapshot_download", "curl -LO", "Hub("):  # fmt: skip
        assert word in code, word
    assert "hf_..." not in code
    adapter = world.stranger.get("/lab/chat-lora/use").body
    assert "PeftModel.from_pretrained(base" in adapter
    assert "--lora-modules" in adapter
    assert "hf_..." in world.admins.get("/lab/secret/use").body


def test_lists_are_filtered_and_sorted(world: World) -> None:
    def found(query: str, at: str = "/lab") -> set[str]:
        page = world.admins.get(f"{at}?{query}")
        assert page.status == 200, page.text[:500]
        return {each.text for each in page.all("a", class_="model-name")}

    everything = {f"lab/{name}" for name in
                  ("base", "chat", "code", "chat-lora", "merge", "secret")}  # fmt: skip
    assert found("") == everything
    assert found("q=chat") == {"lab/chat", "lab/chat-lora"}
    assert found("task=text-generation") == {"lab/base"}
    assert found("library=peft") == {"lab/chat-lora"}
    assert found("tag=license:mit") == {"lab/chat", "lab/code"}
    assert found("base=lab/base") == everything - {"lab/base"}
    assert found("private=true") == {"lab/secret"}
    assert found("dtype=BF16") == everything
    assert found("dtype=F64") == set()
    assert found("most=100M") == everything
    assert found("least=1B") == set()
    assert found("q=chat&ns=lab", at="/") == {"lab/chat", "lab/chat-lora"}
    assert found("q=chat&ns=none", at="/") == set()
    for sort in ("changed", "created", "downloads"):
        assert found(f"sort={sort}") == everything
    assert "lab/secret" not in world.stranger.get("/lab").body
    assert world.stranger.get("/?after=nonsense").status == 422
    assert world.stranger.get("/?private=true").all("a", class_="model-name") == []


def test_a_namespace_shows_members_to_members_alone(world: World) -> None:
    assert "1 member" in world.admins.get("/lab").text
    for browser in (world.user, world.stranger):
        page = browser.get("/lab")
        assert page.status == 200
        assert "member" not in page.text
        assert "5 models" in page.text, "of those that they may read"
    assert "6 models" in world.admins.get("/lab").text
    assert world.stranger.get("/none").status == 404
    assert world.stranger.get("/user").status == 200


def test_names_with_slashes_and_odd_characters_round_trip(world: World) -> None:
    hub, name = world.hub, "admin/odd"
    hub.create(name)
    odd = "für alle/a #1 100% & 'b' +c;=@[x]{y}~!$,^`.txt"
    hub.commit(name, {odd: b"odd text\n", "main": b"a file called as a branch"})
    for branch in ("feature/x+y", "main2", "a/tree/b"):
        answer = hub.call("POST", f"/api/models/{name}/branch/{quote(branch, safe='')}",
                          token=hub.admin_token, body={})  # fmt: skip
        assert answer.status == 200, answer.body
    refs = world.stranger.get(f"/{name}/refs")
    assert f"/{name}/tree/a%2Ftree%2Fb" in refs.links
    for branch in ("feature/x+y", "a/tree/b", "main"):
        part = quote(branch, safe="")
        page = world.stranger.get(f"/{name}/tree/{part}/{quote('für alle')}")
        assert page.status == 200
        (link,) = [each for each in page.links if "/blob/" in each]
        assert link.startswith(f"/{name}/blob/{part}/")
        shown = world.stranger.get(link)
        assert "odd text" in shown.text
        (download,) = {each for each in shown.links if "/resolve/" in each}
        assert world.stranger.fetch(download).body == b"odd text\n"
        assert world.stranger.get(f"/{name}/commits/{part}").status == 200
        assert world.stranger.get(f"/{name}/tensors/{part}").status == 200
    assert "a file called as a branch" in world.stranger.get(f"/{name}/blob/main/main").text


def test_links_that_hugging_face_clients_print_open(world: World) -> None:
    head = world.hub.call("GET", "/api/models/lab/base").json()["sha"]
    for path in ("/lab/base/tree/main/", f"/lab/base/tree/{head}", f"/lab/base/commit/{head}",
                 "/lab/base/blob/main/figures/plot.png", "/lab/base/tree/main/figures",
                 "/lab/base/commits/main", "/lab/base"):  # fmt: skip
        assert world.stranger.get(path).status == 200, path


def test_a_model_without_commits_says_how_to_begin(world: World) -> None:
    world.hub.create("admin/empty")
    for place in ("", "/tree/main", "/commits/main", "/tensors/main", "/refs", "/lineage", "/use"):
        page = world.admins.get(f"/admin/empty{place}")
        assert page.status == 200, place
    assert "deltahub push FOLDER admin/empty" in world.admins.get("/admin/empty").text
    assert "deltahub push" not in world.stranger.get("/admin/empty").text
    assert world.stranger.get("/admin/empty/tree/other").status == 404


def test_files_that_wait_for_their_ingest_are_shown_as_pending(world: World) -> None:
    world.hub.create("admin/pending")
    body = json.dumps({"model_type": "tiny"}).encode()
    large = bytes(1 << 16)
    files = {"config.json": body, "data.bin": large, "merge_report.json": large}
    world.hub.commit("admin/pending", files)
    page = world.stranger.get("/admin/pending")
    assert (page.status, "/-/reports/" in page.body) == (200, False)
    rows = _rows(world.stranger.get("/admin/pending/tree/main"))
    assert all("pending" in row for row in rows)
    assert "tiny" in world.stranger.get("/admin/pending/blob/main/config.json").text
    assert "cannot be shown" in world.stranger.get("/admin/pending/blob/main/data.bin").text
    assert world.stranger.get("/admin/pending/commit/main").status == 200


def _rows(page: Page) -> list[str]:
    rows = [re.sub(r"\s+", " ", each.text).strip() for each in page.all("tr")]
    return [re.sub(r" Up to.*", "", row) for row in rows[1:]]
