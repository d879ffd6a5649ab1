"""Pages of large models answer at once, and show no more than a page."""

import time

import pytest
import torch

from deltahub.registry.catalog.commit import AddFile, commit
from support.models.tiny_models import to_file
from support.registry.ingested import push_ingested
from support.web.model_family import World
from support.web.page_reader import Page

# Of a machine that does other things too.
_SOON_S = 5.0


def soon(world: World, path: str) -> Page:
    began = time.monotonic()
    page = world.stranger.get(path)
    took = time.monotonic() - began
    assert page.status == 200, page.text[:300]
    assert took < _SOON_S, f"{path} took {took:.1f} s"
    assert len(page.body) < 1 << 20, path
    return page


@pytest.mark.long
def test_ten_thousand_tensors_are_paged_sorted_and_filtered(world: World) -> None:
    tensors = {f"layers.{i}.weight": torch.full((8,), float(i)) for i in range(10_000)}
    files = {"model.safetensors": to_file(tensors)}
    push_ingested(world.hub.registry, world.admin, "admin/wide", files)
    for query in ("", "?page=100", "?sort=ratio&down=true", "?sort=name&page=50", "?q=999"):
        page = soon(world, f"/admin/wide/tensors/main{query}")
        assert 0 < len(page.all("td", class_="tensor-name")) <= 100
    assert "of 10,000 tensors" in soon(world, "/admin/wide/tensors/main").text
    for place in ("", "/tree/main", "/blob/main/model.safetensors", "/commit/main", "/lineage"):
        soon(world, f"/admin/wide{place}")


@pytest.mark.long
def test_five_thousand_files_are_paged_and_each_is_found(world: World) -> None:
    paths = [f"data/{i % 50:02}/part-{i:04}.txt" for i in range(5_000)]
    paths += [f"flat-{i:03}.txt" for i in range(250)]
    world.hub.create("admin/many")
    sha256 = world.hub.upload(b"all of them", world.hub.admin_token)
    operations = [AddFile(path, sha256, len(b"all of them")) for path in paths]
    commit(world.hub.registry, world.admin, "admin/many", "main", operations)
    seen: list[str] = []
    path: str | None = "/admin/many/tree/main"
    while path is not None:
        page = soon(world, path)
        cells = page.all("td", class_="file-name")
        assert len(cells) <= 100
        seen += [each.text.split()[0] for each in cells]
        more = [each.attributes["href"] for each in page.all("a", rel="next")]
        path = more[0] if more else None
    assert seen == ["data", *(f"flat-{i:03}.txt" for i in range(250))]
    assert "5,000 files" in soon(world, "/admin/many/tree/main").text
    assert len(soon(world, "/admin/many/tree/main/data").all("td", class_="file-name")) == 50
    soon(world, "/admin/many/blob/main/data/00/part-0000.txt")
    changes = soon(world, "/admin/many/commit/main")
    assert len(changes.all("section", class_="change")) == 50
    (more,) = [each.attributes["href"] for each in changes.all("a", rel="next")]
    assert len(soon(world, more).all("section", class_="change")) == 50


def test_long_texts_lines_and_messages_are_cut(world: World) -> None:
    world.hub.create("admin/long")
    lines = "".join(f"line {i}\n" for i in range(100_000))
    files = {"long.txt": lines.encode(), "wide.txt": b"x" * 200_000,
             "deep.json": b"[" * 20_000 + b"]" * 20_000, "cut.txt": "é".encode() * 200_000,
             "number.json": b"[1e999999999, %s]" % (b"9" * 50_000)}  # fmt: skip
    world.hub.commit("admin/long", files, message="m" * 10_000 + "\n\n" + "b" * 50_000)
    for path in files:
        page = soon(world, f"/admin/long/blob/main/{path}")
        assert len(page.all("span", class_="line")) <= 5000
    changed = {"long.txt": lines.replace("7", "8").encode(), "wide.txt": b"y" * 200_000}
    world.hub.commit("admin/long", changed, message="Change")
    soon(world, "/admin/long/commit/main")
    soon(world, "/admin/long/commits/main")


def test_many_branches_are_paged(world: World) -> None:
    world.hub.create("admin/branches")
    world.hub.commit("admin/branches", {"a.txt": b"a"})
    for i in range(105):
        world.hub.call("POST", f"/api/models/admin/branches/branch/b{i:03}",
                       token=world.hub.admin_token, body={})  # fmt: skip
    page = soon(world, "/admin/branches/refs")
    (more,) = [each.attributes["href"] for each in page.all("a", rel="next")]
    rest = soon(world, more)
    names = [each.text.strip() for one in (page, rest) for each in one.all("a")
             if "/tree/b" in each.attributes.get("href", "")]  # fmt: skip
    assert len(names) == len(set(names)) == 105
    # The menu of branches has only the first.
    menu = soon(world, "/admin/branches/tree/main").one("div", class_="menu-items").text
    assert "b020" in menu
    assert "b050" not in menu
