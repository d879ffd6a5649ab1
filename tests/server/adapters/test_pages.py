"""People make kits, convert and extract adapters by forms, and read what came of it on pages."""

from pathlib import Path

import pytest

from support.adapters.place import Place
from support.adapters.tuning import trained_adapter, write_llama
from support.web.job_forms import asked, finished, started
from support.web.page_reader import Browser


@pytest.fixture(scope="module")
def browser(place: Place) -> Browser:
    return Browser(place.hub, place.token)


def test_a_kit_is_estimated_made_and_shown_matrix_by_matrix(place: Place, browser: Browser) -> None:
    given = {"base": "ann/base", "rank": "4", "name": "ann/kit", "targets": "q_proj\nv_proj"}
    estimated = asked(place, browser, "pissa_init", given)
    assert "It will take" in estimated.text
    done = started(place, browser, estimated)
    assert "The factors hold" in done.text
    assert "model.layers.1.self_attn.v_proj" in done.text
    assert 'pissa_model(Hub(), "ann/base", kit="ann/kit")' in done.text
    told = browser.get("/-/reports/ann/kit")
    assert told.status == 200
    assert "model.layers.0.self_attn.q_proj" in told.text
    assert "/-/reports/ann/kit" in browser.get("/ann/kit").links


def test_a_kit_for_four_bits_says_what_is_lost_less(place: Place, browser: Browser) -> None:
    given = {"base": "ann/base", "rank": "4", "name": "ann/kit-nf4", "quant": "nf4", "now": "1"}
    done = asked(place, browser, "pissa_init", given)
    assert "nf4, fitted 5 times" in done.text
    assert "NF4 loses less by" in done.text


def test_a_kit_that_the_hub_has_already_is_said_to_be_found(place: Place, browser: Browser) -> None:
    given = {"base": "ann/base", "rank": "3", "targets": "q_proj", "now": "1"}
    first, again = (asked(place, browser, "pissa_init", given) for _ in range(2))
    said = "the job found it and made nothing"
    assert said not in first.text
    assert said in again.text
    assert said not in browser.get("/-/reports/ann/base-pissa-r3").text


def test_an_adapter_is_converted_from_its_page(
    place: Place, browser: Browser, tmp_path: Path
) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/by-page", base="ann/base")
    place.report_of("ann/by-page")
    at = "/ann/by-page/adapter"
    assert "It changed its base" in browser.get(at).text
    estimated = asked(place, browser, "convert_adapter", {"adapter": "ann/by-page"})
    assert "of the plain LoRA" in estimated.text
    done = finished(place, browser, browser.post(f"{at}/convert", {}, at=at))
    assert "was 4 when it was pushed" in done.text
    assert at in done.links
    place.report_of("ann/by-page")
    after = browser.get(at)
    assert "It belongs to its base as it is" in after.text
    assert "exact but for rounding" in after.text
    assert not [each for each in after.all("button") if "Convert" in each.text]
    assert "Made from" in browser.get("/-/reports/ann/by-page").text


def test_a_fine_tune_is_extracted(place: Place, browser: Browser, tmp_path: Path) -> None:
    place.ann.push(write_llama(tmp_path / "tuned", "next"), "ann/tuned", base="ann/base")
    given = {"model": "ann/tuned", "name": "ann/lora", "rank": "4"}
    estimated = asked(place, browser, "extract_adapter", given)
    assert "that the fine-tune changed" in estimated.text
    done = started(place, browser, estimated)
    assert "Lost of all changes" in done.text
    assert "model.embed_tokens.weight" in done.text
    assert "Lost of its matrices" in browser.get("/-/reports/ann/lora").text


@pytest.mark.parametrize("kind", ["pissa_init", "convert_adapter", "extract_adapter"])
def test_a_form_asks_for_every_argument_once(browser: Browser, kind: str) -> None:
    from deltahub.methods.kinds.table import KINDS

    page = browser.get(f"/-/jobs/new/{kind}")
    names = [each.attributes.get("name") for tag in ("input", "select", "textarea")
             for each in page.all(tag)]  # fmt: skip
    for name in KINDS[kind].model_fields:
        assert names.count(name) == (name != "dry_run"), name
