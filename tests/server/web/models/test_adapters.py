"""The page of an adapter shows what its report says, to whoever may read it, and no more."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deltahub.methods.kinds.table import KINDS
from deltahub.registry.access import organizations, tokens
from deltahub.registry.adapters.reports import write_report
from deltahub.registry.jobs import requests
from support.registry.ingested import push_ingested
from support.web.model_family import World, hub_with_family
from support.web.page_reader import Browser, Element, Page

MARKUP = "\"'><img src=x onerror=probe()><script>probe()</script> `<b>` {{ 7919*7919 }}"
SOURCE = "https://docs.vllm.ai/en/stable/features/lora/"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A hub for the models of these tests alone: others count all models of theirs."""
    with hub_with_family(tmp_path_factory.mktemp("adapters") / "data") as running:
        yield running


def report_of(state: str, **changes: Any) -> dict[str, Any]:
    """A report as the worker writes it."""
    verdict = {"engine": "vLLM", "version": "0.22.1", "verdict": "loads after conversion",
               "reasons": ["rank 8 needs --max-lora-rank 8"], "sources": [SOURCE]}  # fmt: skip
    return {
        "version": 1, "title": "lab/x@12345678", "peft_type": "LORA", "init": "pissa",
        "rule": "from_base", "ranks": [4], "scales": [2.0],
        "base": {"name": "lab/base", "commit": "a" * 40, "is_at_hand": True, "differs": False},
        "n_modules": 8, "extras": {"heads": 1}, "initial_factors": None, "faults": [],
        "notes": [], "state": state, "why": "it took a part out of the base's weights",
        "way_out": "let the hub convert it", "verdicts": [verdict], **changes,
    }  # fmt: skip


def adapter(world: World, name: str, state: str, *, private: bool = False, **changes: Any) -> str:
    """Push an adapter that the worker has looked at; the address of its page."""
    config = {"base_model_name_or_path": "lab/base", "peft_type": "LORA", "r": 4}
    files = {"adapter_config.json": json.dumps(config).encode(), **changes.pop("files", {})}
    reg = world.hub.registry
    revision = push_ingested(reg, world.admin, name, files, private=private, base="lab/base")
    write_report(reg, revision, state, report_of(state, **changes))
    return f"/{name}/adapter"


def buttons(page: Page) -> list[Element]:
    return [each for each in page.all("button") if "Convert" in each.text]


@pytest.mark.parametrize(
    ("state", "kind"),
    [("plain", ""), ("convertible", "badge-attention"), ("quarantined", "badge-bad"),
     ("broken", "badge-bad")],
)  # fmt: skip
def test_every_page_of_an_adapter_has_its_state_and_a_tab(
    world: World, state: str, kind: str
) -> None:
    at = adapter(world, f"lab/is-{state}", state)
    for place in ("", "/tree/main", "/use", "/refs", "/lineage", "/adapter", "/compare"):
        page = world.stranger.get(f"/lab/is-{state}{place}")
        (badge,) = [each for each in page.all("span", class_="badge") if "adapter" in each.text]
        assert badge.text == f"{state} adapter"
        assert (kind or "badge") in badge.attributes["class"]
        assert at in page.links
    assert not [link for link in world.stranger.get("/lab/base").links if "/adapter" in link]


def test_the_page_says_what_the_adapter_is_and_where_it_can_be_served(world: World) -> None:
    faults = ["lora_A of q_proj has rank 8"]
    page = world.stranger.get(adapter(world, "lab/told", "broken", faults=faults))
    for said in ("LORA", "pissa", "heads (1)", "8 modules", "lora_A of q_proj has rank 8.",
                 "Let the hub convert it.", "loads after conversion",
                 "Rank 8 needs --max-lora-rank 8."):  # fmt: skip
        assert said in page.text, said
    assert "/lab/base" in page.links
    assert SOURCE in page.links


@pytest.mark.parametrize("state", ["plain", "convertible", "quarantined", "broken"])
def test_lines_for_peft_name_base_adapter_and_hub(world: World, state: str) -> None:
    at = adapter(world, f"lab/use-{state}", state)
    page = world.stranger.get(f"/lab/use-{state}/use")
    (lines,) = [each.text for each in page.all("pre") if "import PeftModel" in each.text]
    assert 'from_pretrained("lab/base")' in lines
    assert f'PeftModel.from_pretrained(base, "lab/use-{state}")' in lines
    endpoint = f"export HF_ENDPOINT={world.hub.url}"
    assert [each.text for each in page.all("pre")].count(endpoint) == 1
    warned = [each for each in page.all("p", class_="alert-warning") if "found out" in each.text]
    assert len(warned) == (state != "plain")
    assert at in page.links


def test_one_click_asks_for_the_conversion_and_a_second_for_the_same_job(world: World) -> None:
    at = adapter(world, "lab/one-click", "convertible")
    page = world.admins.get(at)
    assert len(buttons(page)) == 1
    assert page.all("button", data_copy="deltahub adapter convert lab/one-click")
    places = {world.admins.post(f"{at}/convert", {}, at=at).headers["Location"] for _ in range(2)}
    (place,) = places
    job = requests.get_job(world.hub.registry, world.admin, place.removeprefix("/-/jobs/"))
    assert (job.kind, job.state) == ("convert_adapter", "queued")
    assert job.payload["arguments"]["adapter"].startswith("lab/one-click@")
    requests.cancel_job(world.hub.registry, world.admin, job.id)


def test_a_job_of_every_kind_names_what_it_works_on(world: World) -> None:
    told = {
        "compare": {"first": "lab/base", "second": "lab/chat"},
        "convert_adapter": {"adapter": "lab/chat-lora"},
        "export_neuzip": {"model": "lab/code", "name": "lab/exported"},
        "extract_adapter": {"model": "lab/code", "name": "lab/extracted"},
        "merge": {"base": "lab/base", "models": "lab/chat\nlab/code", "method": "compare"},
        "merge_adapter": {"adapter": "lab/chat-lora@main", "base": "lab/base"},
        "pissa_init": {"base": "lab/code"},
        "transfer_adapter": {"adapter": "lab/chat-lora", "base": "lab/code", "name": "lab/moved"},
        "upgrade_base": {"base": "lab/code", "from_base": "lab/base"},
    }
    assert set(told) == set(KINDS)
    for kind, given in told.items():
        at = f"/-/jobs/new/{kind}"
        job = world.admins.post(at, {**given, "now": "1"}, at=at).headers["Location"]
        subject = next(iter(given.values())).partition("@")[0]
        for place in ("/-/jobs", "/-/admin/jobs", job):
            links = world.admins.get(f"{place}?kind={kind}").links
            # The heading of a job's page has the name of what the job makes, if it has one.
            assert f"/{subject}" in links or (place == job and "name" in given)
        rows = json.loads(world.admins.get(f"/-/jobs?kind={kind}&format=json").body)["items"]
        assert len(rows) == 1 or kind == "convert_adapter"
        row = rows[0]
        assert row["works_on"][0].partition("@")[0] == subject
        text = world.admins.get(f"/-/jobs?kind={kind}").one("table").text
        assert ("+2 more" in text) == (kind == "merge")
        requests.cancel_job(world.hub.registry, world.admin, job.removeprefix("/-/jobs/"))


@pytest.mark.parametrize("state", ["plain", "quarantined", "broken"])
def test_only_a_convertible_adapter_is_offered_to_be_converted(world: World, state: str) -> None:
    at = adapter(world, f"lab/not-{state}", state)
    assert buttons(world.admins.get(at)) == []
    refused = world.admins.post(f"{at}/convert", {}, at=at)
    assert refused.status == 409
    assert "no adapter that can be converted" in refused.one("div", role="alert").text


def test_readers_have_no_button_and_are_refused(world: World) -> None:
    at = adapter(world, "lab/for-writers", "convertible")
    token = tokens.create_token(world.hub.registry, "admin", "read", "tests")
    member = world.hub.user("reading-member")
    organizations.add_member(world.hub.registry, "lab", "reading-member", "read")
    browsers = (Browser(world.hub, token), Browser(world.hub, member), world.user, world.stranger)
    for browser in browsers:
        page = browser.get(at)
        assert page.status == 200
        assert buttons(page) == []
        assert f"{at}/convert" not in page.body
        place = "/-/settings" if browser is not world.stranger else "/-/login"
        assert browser.post(f"{at}/convert", {}, at=place).status in (401, 403)
    forged = world.hub.call("POST", f"{at}/convert", headers={"Cookie": world.admins.session})
    assert forged.status == 403


def test_a_private_adapter_is_for_a_stranger_what_no_model_is(world: World) -> None:
    at = adapter(world, "lab/private-adapter", "convertible", private=True)
    assert world.admins.get(at).status == 200
    for browser, place in ((world.stranger, "/-/login"), (world.user, "/-/settings")):
        assert browser.get(at).status == 404
        assert "convertible" not in browser.get(at).body
        assert browser.post(f"{at}/convert", {}, at=place).status == 404


def test_a_base_that_the_reader_may_not_read_is_no_link(world: World) -> None:
    base = {"name": "lab/secret", "commit": "b" * 40, "is_at_hand": True, "differs": False}
    at = adapter(world, "lab/of-secret", "convertible", base=base)
    assert "/lab/secret" in world.admins.get(at).links
    assert "/lab/secret" not in world.stranger.get(at).links


def test_what_is_no_adapter_has_no_such_page(world: World) -> None:
    assert world.admins.get("/lab/base/adapter").status == 404
    assert world.admins.get("/lab/absent/adapter").status == 404


def test_an_adapter_without_a_report_says_so(world: World) -> None:
    files = {"adapter_config.json": b"{}"}
    push_ingested(world.hub.registry, world.admin, "lab/not-looked-at", files)
    page = world.stranger.get("/lab/not-looked-at/adapter")
    assert page.status == 200
    assert "not looked at yet" in page.text


def test_hostile_reports_are_text(world: World) -> None:
    verdict = {"engine": MARKUP, "version": MARKUP, "verdict": MARKUP, "reasons": [MARKUP] * 2,
               "sources": ["javascript:probe()", f"https://x.example/{MARKUP}"]}  # fmt: skip
    conversion = {
        "adapter": "lab/x@main", "base": "lab/base", "init": MARKUP, "source": MARKUP, "rank": 8,
        "trained_rank": 4, "dtype": MARKUP, "n_modules": 1, "error": 0.5, "kept": [MARKUP],
    }  # fmt: skip
    at = adapter(
        world, "lab/hostile-report", "quarantined", peft_type=MARKUP, init=MARKUP,
        base={"name": f"//evil.example/{MARKUP}", "is_at_hand": False}, extras={MARKUP: 1},
        initial_factors=MARKUP, faults=[MARKUP], notes=[MARKUP], why=MARKUP, way_out=MARKUP,
        verdicts=[verdict], files={"conversion.json": json.dumps(conversion).encode()},
    )  # fmt: skip
    for place in (at, "/-/reports/lab/hostile-report", "/lab/hostile-report/use"):
        page = world.admins.get(place)
        assert page.status == 200
        assert "probe()" in page.text or place.endswith("use")
        for each in page.elements:
            assert "onerror" not in each.attributes
            assert "probe" not in each.text or each.tag != "script"
            assert each.tag != "img" or each.attributes["src"].startswith("/-/assets/")
        for link in page.links:
            assert link.startswith(("/", "#", "https://x.example/", "https://")), link
            assert not link.startswith("//"), link
            assert "<" not in link


@pytest.mark.parametrize(
    "told",
    [{"adapter": "//evil.example/x"}, {"base": "/evil.example"}, {"error": "NaN"}, {"kept": 1}, {}],
)
def test_a_conversion_file_of_another_form_is_left_out(
    world: World, told: dict[str, object]
) -> None:
    found = {
        "adapter": "lab/x@main", "base": "lab/base", "init": "pissa", "source": "s", "rank": 8,
        "trained_rank": 4, "dtype": "F32", "n_modules": 1, "error": 0.5, "kept": [],
    } | told  # fmt: skip
    data = json.dumps(found).encode()
    at = adapter(world, "lab/odd-conversion", "plain", files={"conversion.json": data})
    assert ("How it was converted" in world.stranger.get(at).text) == (told == {})
    page = world.stranger.get("/-/reports/lab/odd-conversion")
    assert page.status == (404 if told else 200)
