"""People ask for an export by a form, and read what it saves, loses, and how it is loaded."""

import json

import pytest

from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from support.exporting.place import Place
from support.web.job_forms import asked, started
from support.web.page_reader import Browser


@pytest.fixture(scope="module")
def browser(place: Place) -> Browser:
    return Browser(place.hub, place.token)


def test_an_export_is_estimated_made_and_shown_weight_by_weight(
    place: Place, browser: Browser
) -> None:
    place.model("bf16")
    given = {"model": "ann/bf16", "name": "ann/by-page", "bits": "3", "also": "1\n0"}
    estimated = asked(place, browser, "export_neuzip", given)
    assert "It will take about" in estimated.text
    done = started(place, browser, estimated)
    told = browser.get("/-/reports/ann/by-page")
    for page in (done, told):
        assert "Compressed weights take" in page.text
        assert "model.layers.1.mlp.down_proj.weight" in page.text
        assert "Largest relative error" in page.text
        assert 'load("ann/by-page")' in page.text
        assert "/ann/bf16" in page.links
    assert "/-/reports/ann/by-page" in browser.get("/ann/by-page").links


def test_a_lossless_export_says_that_nothing_is_lost(place: Place, browser: Browser) -> None:
    place.model("bf16")
    place.export("bf16", "page-exact")
    assert (
        "every weight decodes to the bits that it had"
        in browser.get("/-/reports/ann/page-exact").text
    )


def test_a_wrong_argument_stands_at_the_form(place: Place, browser: Browser) -> None:
    at = "/-/jobs/new/export_neuzip"
    given = {"model": "ann/bf16", "name": "ann/x", "bits": "auto", "key": "k"}
    answer = browser.post(at, given, at=at)
    assert answer.status == 422
    assert "bits auto and a budget belong together" in answer.text


def test_the_page_of_an_export_loads_it_by_deltahub(place: Place, browser: Browser) -> None:
    place.model("bf16")
    place.export("bf16", "page-use")
    page = browser.get("/ann/page-use/use")
    assert "from deltahub.client.inference import load" in page.text
    assert 'load("ann/page-use", hub=hub)' in page.text
    assert "from_pretrained" not in page.text
    assert "vllm" not in page.text
    assert "from_pretrained" in browser.get("/ann/bf16/use").text


def test_pages_and_search_count_the_models_parameters_and_say_what_an_export_is(
    place: Place, browser: Browser
) -> None:
    number = sum(each.numel() for each in place.model("bf16").values())
    made = {
        "facts-exact": ("Export of", "export of", {}),
        "facts-rounded": ("Quantized from", "quantized from", {"bits": 3}),
        "facts-whole": ("Quantized from", "quantized from", {"bits": 3, "method": "entquant"}),
    }
    for name, (word, in_list, options) in made.items():
        place.export("bf16", name, **options)
        page = browser.get(f"/ann/{name}").text
        assert word in page
        (found,) = place.ann.search(name, parameters=(number, number))
        assert found.parameters == {"BF16": number}
        assert found.role == "export"
        assert in_list in browser.get(f"/?search={name}").text
    assert "Quantized" not in browser.get("/ann/facts-exact").text


def test_lineage_shows_exports_by_their_models_alone(place: Place, browser: Browser) -> None:
    place.model("parent")
    for name, options in (("child-1", {}), ("child-2", {"bits": 3}), ("child-3", {"bits": 1})):
        place.export("parent", name, **options)
    found = place.ann.lineage("ann/parent").links
    links = [each for each in found if each.child.startswith("ann/child")]
    assert {(each.parent, each.child) for each in links} == {
        ("ann/parent", f"ann/child-{number}") for number in (1, 2, 3)
    }
    assert all(each.declared and each.share is None for each in links)
    assert "also measured" not in browser.get("/ann/parent/lineage").text


def test_the_report_of_whole_numbers_has_the_bits_that_they_take(
    place: Place, browser: Browser
) -> None:
    place.model("bf16")
    _, report = place.export("bf16", "whole-3", bits=3, method="entquant")
    whole = [each for each in report["weights"] if each["method"] == "entquant"]
    assert {(each["bits"], tuple(each["levels"])) for each in whole} == {(None, ())}
    for each in report["weights"]:
        count = each["shape"][0] * each["shape"][1]
        assert each["element_bits"] == pytest.approx(8 * each["coded_bytes"] / count)
    page = browser.get("/-/reports/ann/whole-3").text
    assert f"{whole[0]['element_bits']:.2f}" in page


def test_a_report_of_many_weights_is_bounded(place: Place, browser: Browser) -> None:
    weight = {
        "dtype": "BF16", "shape": [64, 64], "bits": 3, "levels": [3], "block": 0, "error": 0.02,
        "plain_bytes": 8192, "coded_bytes": 3000, "bound": 0.06, "largest": 0.05,
    }  # fmt: skip
    report = {
        "model": "ann/bf16", "bits": "3", "budget": None, "block": 0, "plain": ["norm"] * 9000,
        "weights": [{"name": f"w{i}"} | weight for i in range(3000)],
        "plain_bytes": 3000 * 8192, "export_bytes": 3000 * 3000,
    }  # fmt: skip
    place.hub.create("ann/many", token=place.token)
    place.hub.commit("ann/many", {"neuzip.json": json.dumps(report).encode()}, place.token)
    page = browser.get("/-/reports/ann/many")
    assert page.status == 200
    assert "2,500 more are in neuzip.json" in page.text
    assert len(page.body) < 1 << 20


@pytest.mark.parametrize("broken", ["{}", "[", '{"weights": [{"error": "NaN"}]}'])
def test_a_file_of_that_name_that_is_no_report_has_no_page(
    place: Place, browser: Browser, broken: str
) -> None:
    name = f"ann/odd-{len(broken)}"
    place.hub.create(name, token=place.token)
    place.hub.commit(name, {"neuzip.json": broken.encode()}, place.token)
    assert browser.get(f"/-/reports/{name}").status == 404
    assert browser.get(f"/{name}").status == 200


def test_a_form_asks_for_every_argument_once(browser: Browser) -> None:
    page = browser.get("/-/jobs/new/export_neuzip")
    names = [each.attributes.get("name") for tag in ("input", "select", "textarea")
             for each in page.all(tag)]  # fmt: skip
    for name in ExportNeuzipArguments.model_fields:
        assert names.count(name) == (name != "dry_run"), name


def test_a_text_is_typed_and_an_address_never_holds_a_long_one(
    place: Place, browser: Browser
) -> None:
    place.model("bf16")
    given = {
        "model": "ann/bf16",
        "name": "ann/page-text",
        "bits": "1",
        "text": "the quick brown fox\njumps over the dog",
    }
    page = started(place, browser, asked(place, browser, "export_neuzip", given))
    assert "Perplexity of the given text" in page.text
    job = place.ann.export_neuzip("ann/bf16", "ann/x", text="the fox " * 1000, dry_run=True).wait()
    estimated = browser.get(f"/-/jobs/{job.id}")
    assert [each for each in estimated.links if "model=ann%2Fbf16" in each and len(each) < 500]
    assert len(estimated.body) < 20_000
