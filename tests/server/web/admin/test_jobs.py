"""A merge is asked for by a form, estimated, followed while it runs, and reported on a page."""

import re
from html import unescape
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from deltahub.methods.kinds.bases.pissa_init import PissaInitArguments
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.server.web.jobs.fields import fields_of, read_arguments
from deltahub.server.web.jobs.kinds import askable
from deltahub.server.web.kinds.merge import Report
from support.merging.family import Family
from support.models import tiny_models as tiny
from support.web.browser import Browser, Page

FORM = "/-/jobs/new/merge"


def form_of(family: Family, **changes: str) -> dict[str, str]:
    given = {"base": "ann/base", "models": "\n".join(family.models), "name": "ann/paged"}
    return {**given, "method": "emr", **changes}


def send(browser: Browser, path: str, form: dict[str, str] | None = None) -> Page:
    return browser.post(path, form, csrf=browser.get("/-/jobs").csrf)


def asked(family: Family, browser: Browser, **changes: str) -> str:
    answer = send(browser, FORM, form_of(family, **changes))
    assert answer.status == 303, answer.problem
    return answer.location.rpartition("/")[2]


def state_of(page: Page) -> str:
    found = re.search(r'data-job-state="(\w+)"', page.text)
    assert found is not None
    return found[1]


def test_an_estimate_comes_first_and_the_job_it_starts_once_reports_with_pictures(
    family: Family, ann: Browser
) -> None:
    form = ann.get(f"{FORM}?base=ann/base")
    assert form.status == 200
    assert set(re.findall(r'type="checkbox" name="models" value="([^"]+)"', form.text)) >= set(
        family.models
    )
    estimate = asked(family, ann)
    assert family.hub.wait_for_job(estimate)["result"].keys() == {"estimate"}
    page = ann.get(f"/-/jobs/{estimate}")
    assert f'action="/-/jobs/{estimate}/start"' in page.text
    started = {send(ann, f"/-/jobs/{estimate}/start").location for _ in range(2)}
    assert len(started) == 1
    (place,) = started
    told = ann.get(f"{place}/live").text
    assert told.endswith("event: over\ndata: done\n\n")
    assert "hx-partial" in told
    assert "id: " in told
    done = ann.get(place)
    assert state_of(done) == "done"
    assert "hx-sse" not in done.text
    assert done.text.count("data-chart") >= 2
    for model in family.models:
        assert f'href="/{model}"' in done.text
    for reader in (Browser(family.hub.url), ann):
        report = reader.get("/-/reports/ann/paged")
        assert (report.status, report.text.count("<figure data-chart")) == (200, 2)
    assert ann.get("/-/reports/ann/base").status == 404


def test_a_merge_leads_to_its_report_and_other_models_to_none(family: Family, ann: Browser) -> None:
    job = asked(family, ann, name="ann/linked", now="1")
    assert family.hub.wait_for_job(job)["state"] == "done"
    for reader in (Browser(family.hub.url), ann):
        assert 'href="/-/reports/ann/linked"' in reader.get("/ann/linked").text
        assert "/-/reports/" not in reader.get("/ann/base").text


def test_a_stream_goes_on_after_the_line_that_the_page_has(family: Family, ann: Browser) -> None:
    job = asked(family, ann, name="ann/streamed", now="1")
    family.hub.wait_for_job(job)
    lines = re.findall(r"^id: (\d+)$", ann.get(f"/-/jobs/{job}/live").text, re.MULTILINE)
    assert len(lines) > 2
    rest = ann.get(f"/-/jobs/{job}/live?after={lines[1]}").text
    assert re.findall(r"^id: (\d+)$", rest, re.MULTILINE) == lines[2:]
    again = ann.get(f"/-/jobs/{job}/live", headers={"Last-Event-ID": lines[-1]}).text
    assert "id: " not in again


def test_a_comparison_shows_the_frontier_and_leads_to_a_form_with_its_choice(
    family: Family, ann: Browser
) -> None:
    job = asked(family, ann, method="compare", name="", budget="30", now="1")
    assert family.hub.wait_for_job(job)["state"] == "done"
    page = ann.get(f"/-/jobs/{job}").text
    assert '"scatter"' in page
    choice = re.search(r'href="(/-/jobs/new/merge\?[^"]+)"', page)
    assert choice is not None
    form = ann.get(unescape(choice[1]))
    chosen = family.hub.call("GET", f"/v1/jobs/{job}", token=family.token).json()
    method = chosen["result"]["comparison"]["choice"]
    assert f'name="method" value="{method}" checked' in form.text
    assert form.text.count('name="models"') == len(family.models) + 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"models": "ann/task0"}, "at least 2 are needed"),
        ({"base": "nothing"}, "is no NAMESPACE/NAME"),
        ({"name": "ann/base"}, "ann/base"),
        ({"base": "ann/absent"}, "ann/absent"),
        ({"method": "average", "density": "0.7"}, "density"),
        ({"exclude": "("}, "no regular expression"),
        ({"eval": "{", "method": "compare"}, "no JSON"),
    ],
)
def test_a_form_with_a_fault_says_so_and_keeps_what_was_typed(
    family: Family, ann: Browser, changes: dict[str, str], sentence: str
) -> None:
    answer = send(ann, FORM, form_of(family, **changes))
    assert answer.status == 422
    problems = re.findall(r'role="alert">(.*?)</', answer.text, re.DOTALL)
    assert any(sentence in unescape(each) for each in problems), problems
    typed = form_of(family, **changes)
    assert f'name="base" value="{typed["base"]}"' in answer.text


def test_the_form_names_other_fine_tunes_only_beside_those_that_it_lists(
    family: Family, ann: Browser
) -> None:
    assert "Other fine-tunes" not in ann.get(FORM).text
    assert ">Fine-tunes</label>" in ann.get(FORM).text
    listed = ann.get(f"{FORM}?base=ann/base").text
    assert '<details class="more-fields field"><summary>Add fine-tunes that are not' in listed
    typed = f"ann/other@v1\n{family.models[0]}"
    part = ann.get(f"/-/jobs/choices/merge?base=ann/base&models={quote(typed)}").text
    assert " open><summary>Add fine-tunes" in part
    assert ">ann/other@v1</textarea>" in part
    assert f'value="{family.models[0]}" checked' in part
    assert part.count("checked") == 1
    alone = ann.get(f"/-/jobs/choices/merge?base=ann/absent&models={quote(typed)}").text
    assert f">{typed}</textarea>" in alone
    assert "Other fine-tunes" not in alone


def test_a_form_sent_twice_asks_for_one_job(family: Family, ann: Browser) -> None:
    key = re.search(r'name="key" value="(\w+)"', ann.get(FORM).text)
    assert key is not None
    form = form_of(family, name="ann/twice", key=key[1])
    assert len({send(ann, FORM, form).location for _ in range(2)}) == 1


def test_jobs_are_their_owners_and_of_those_who_may_write(family: Family, ann: Browser) -> None:
    job = asked(family, ann, name="ann/hers")
    bob = Browser(family.hub.url)
    bob.log_in(family.hub.user("bob"))
    guest = Browser(family.hub.url)
    for path in (f"/-/jobs/{job}", f"/-/jobs/{job}/live"):
        assert bob.get(path).status == 404
        assert guest.get(path).location.startswith("/-/login?next=")
    assert send(bob, f"/-/jobs/{job}/cancel").status == 404
    assert job not in bob.get("/-/jobs?format=json").text
    assert job in ann.get("/-/jobs?format=json").text
    assert guest.get("/-/jobs").location == "/-/login?next=%2F-%2Fjobs"


def test_a_cancelled_job_offers_to_run_again(family: Family, ann: Browser) -> None:
    job = asked(family, ann, name="ann/cancelled", now="1")
    assert send(ann, f"/-/jobs/{job}/cancel").status == 303
    family.hub.wait_for_job(job)
    page = ann.get(f"/-/jobs/{job}")
    if state_of(page) == "cancelled":
        assert send(ann, f"/-/jobs/{job}/retry").status == 303
        assert family.hub.wait_for_job(job)["state"] == "done"


def test_names_are_text_wherever_they_come_from(family: Family, ann: Browser) -> None:
    evil = '<img src=x onerror="x">'
    answer = send(ann, FORM, form_of(family, base=evil, name=evil, models=evil))
    assert "<img src=x" not in answer.text
    asked_for = quote(evil)
    filtered = ann.get(f"/-/jobs?kind={asked_for}")
    assert filtered.status == 422
    assert "<img src=x" not in filtered.text
    assert "<img src=x" not in ann.get(f"{FORM}?base={asked_for}&models={asked_for}").text


def test_a_file_that_only_looks_like_a_report_is_none(family: Family) -> None:
    family.hub.create("ann/odd", token=family.token)
    guest = Browser(family.hub.url)
    for text in (b"[]", b'{"tasks": 1}', b"{" * 100_000, b'{"method": {}}', b"\xff"):
        files = {"merge_report.json": text, "model.safetensors": tiny.to_file(tiny.base())}
        family.hub.commit("ann/odd", files, family.token)
        assert guest.get("/-/reports/ann/odd").status == 404
        assert "/-/reports/" not in guest.get("/ann/odd").text


@pytest.mark.parametrize("name", ["/evil.example", "//evil.example/x", "evil"])
def test_a_report_that_anybody_pushed_links_to_models_of_this_hub_alone(name: str) -> None:
    told = {
        "method": "emr", "base": "ann/base", "fine_tunes_bytes": 1, "main_bytes": 1,
        "branches_bytes": 1, "merged_tensors": 1, "merged_elements": 1, "warnings": [], "tasks": [],
    }  # fmt: skip
    Report.model_validate(told)
    task = {"branch": "a", "model": "ann/a", "is_exact": False, "kept_tensors": 0,
            "fine_tune_bytes": 1, "branch_bytes": 1}  # fmt: skip
    Report.model_validate(told | {"tasks": [task]})
    for wrong in ({"base": name}, {"tasks": [task | {"model": name}]}):
        with pytest.raises(ValidationError):
            Report.model_validate(told | wrong)


def test_a_choice_that_may_be_left_out_starts_as_none() -> None:
    quant = fields_of(PissaInitArguments, {})["quant"]
    assert (quant.widget, quant.choices, quant.value) == ("choice", ("", "nf4"), "")
    given = {"base": "a/base", "quant": ""}
    read, problems = read_arguments(PissaInitArguments, given, dry_run=False)
    assert (read, problems) == (PissaInitArguments(base="a/base"), {})


def test_a_kind_without_a_form_gets_one_from_its_arguments() -> None:
    assert {each.kind for each in askable()} >= {"merge"}
    fields = fields_of(MergeArguments, {"models": "a/b\nc/d"})
    assert (fields["method"].widget, "emr" in fields["method"].choices) == ("choice", True)
    assert fields["models"].value == "a/b\nc/d"
    assert [each.is_required for each in (fields["base"], fields["name"])] == [True, False]
    assert fields["private"].widget == "maybe"
    assert "dry_run" not in fields
    given = {name: each.value for name, each in fields.items()} | {
        "base": "a/base", "name": "a/new", "exclude": "", "lossless": "on",
    }  # fmt: skip
    read, problems = read_arguments(MergeArguments, given, dry_run=True)
    assert problems == {}
    assert read == MergeArguments(
        base="a/base", models=("a/b", "c/d"), name="a/new", exclude=(), lossless=True, dry_run=True
    )
