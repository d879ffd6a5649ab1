"""A private model is for a stranger what no model is: in status, headers and every letter."""

import re

import pytest

from support.web.model_family import World
from support.web.page_reader import Browser, Page

PLACES = (
    "", "/tree", "/tree/main", "/tree/main/README.md", "/tree/none", "/blob/main/README.md",
    "/blob/main/none", "/commits", "/commits/main", "/commit/main", "/commit/0000000", "/refs",
    "/lineage", "/use", "/tensors", "/tensors/main", "/adapter", "/settings", "/tree/main?after=x",
    "/tensors/main?page=2", "/commits/main?after=0000000", "/tensors/main?sort=none",
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_its_pages_equal_those_of_a_model_that_does_not_exist(world: World, place: str) -> None:
    for browser in (world.stranger, world.user):
        private = _anonymous(browser.get(f"/lab/secret{place}"), "secret")
        absent = _anonymous(browser.get(f"/lab/absent{place}"), "absent")
        assert private == absent
        assert private[0] in (404, 307, 422)


def test_forms_do_not_tell_either(world: World) -> None:
    forms = (
        ("settings/visibility", {"visibility": "public"}), ("settings/delete", {"name": "x"}),
        ("adapter/convert", {}),
    )  # fmt: skip
    for place, fields in forms:
        for browser in (world.stranger, world.user):
            found = [
                _anonymous(
                    browser.post(f"/lab/{name}/{place}", fields, at=_form_page(browser)),
                    name,
                )
                for name in ("secret", "absent")
            ]
            assert found[0] == found[1]
            assert found[0][0] == 404
    assert world.admins.get("/lab/secret").status == 200


def test_lists_files_and_families_do_not_name_it(world: World) -> None:
    for browser in (world.stranger, world.user):
        for path in ("/", "/lab", "/?q=secret", "/lab?private=true", "/?base=lab/base",
                     "/lab/base/lineage", "/lab/merge/tree/main", "/lab/merge/lineage",
                     "/lab/merge/blob/main/model.safetensors"):  # fmt: skip
            page = browser.get(path)
            assert page.status == 200
            assert "lab/secret" not in page.body, path
            assert "shared" not in page.text, path


def test_members_see_all_of_it(world: World) -> None:
    for place in ("", "/tree/main", "/blob/main/README.md", "/commits/main", "/commit/main",
                  "/refs", "/lineage", "/use", "/tensors/main", "/settings"):  # fmt: skip
        assert world.admins.get(f"/lab/secret{place}").status == 200, place
    download = world.admins.fetch("/lab/secret/resolve/main/README.md")
    assert (download.status, download.body) == (200, b"# Secret\n")
    assert world.stranger.fetch("/lab/secret/resolve/main/README.md").status == 404


def _form_page(browser: Browser) -> str:
    return "/-/login" if browser.get("/-/login").status == 200 else "/"


def _anonymous(page: Page, name: str) -> tuple[int, list[tuple[str, str]], str]:
    """What an answer says, without its name, its nonce, its tokens and the time."""
    body = re.sub(r'nonce="[^"]*"', "", page.body)
    body = re.sub(r'(X-CSRF-Token": "|name="csrf" value=")[^"]*', r"\1", body)
    headers = [
        (key.lower(), re.sub(r"'nonce-[^']*'", "", value).replace(name, "NAME"))
        for key, value in page.headers.items()
        if key.lower() not in ("date", "x-request-id")
    ]
    return page.status, headers, body.replace(name, "NAME")
