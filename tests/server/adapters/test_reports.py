"""What the hub finds out about adapters when they are pushed, and what it does about it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import GatedRepoError
from peft import PeftModel
from safetensors.torch import load_file, save_file

from deltahub.client.errors import EntryNotFound, Forbidden
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.models import Ref
from support.adapters.place import Place
from support.adapters.tuning import load_base, logits, trained_adapter
from support.service.client_process import deltahub

WEIGHTS = "adapter_model.safetensors"


def pushed(place: Place, folder: Path, name: str, **options: Any) -> torch.Tensor:
    expected = trained_adapter(place.base, folder, **options)
    place.ann.push(folder, name, base="ann/base")
    place.report_of(name)
    return expected


@pytest.mark.parametrize(
    ("options", "state", "rule"),
    [
        ({}, "plain", "plain"),
        ({"init_lora_weights": "pissa"}, "convertible", "from_base"),
        ({"init_lora_weights": "olora"}, "convertible", "from_base"),
        ({"init_lora_weights": "pissa_niter_4"}, "quarantined", "needs_init"),
        ({"init_lora_weights": "pissa_niter_4", "with_init": True}, "convertible", "needs_init"),
        ({"use_dora": True, "init_lora_weights": "pissa"}, "quarantined", "from_base"),
    ],
)
def test_each_kind_is_known_by_its_state(
    place: Place, tmp_path: Path, options: dict[str, Any], state: str, rule: str
) -> None:
    name = f"ann/{tmp_path.name[:60]}"
    pushed(place, tmp_path / "a", name, **options)
    report = place.report_of(name)
    assert (report["state"], report["rule"], report["convert"]) == (state, rule, "ask")
    assert report["base"]["name"] == "ann/base"
    assert report["base"]["is_at_hand"]
    assert {each["engine"] for each in report["verdicts"]} >= {"vLLM", "SGLang", "llama.cpp"}
    done = deltahub("adapter", "lint", name, environment=place.environment)
    assert done.status == (1 if state == "quarantined" else 0)
    assert f": {state}" in done.out


def test_a_quarantined_adapter_is_not_served_by_a_branch(place: Place, tmp_path: Path) -> None:
    pushed(place, tmp_path / "a", "ann/wrong", init_lora_weights="pissa_niter_4")
    where = {"endpoint": place.hub.url, "token": place.token, "cache_dir": tmp_path / "cache"}
    hf_hub_download("ann/wrong", "adapter_config.json", **where)
    with pytest.raises(GatedRepoError, match="initial"):
        hf_hub_download("ann/wrong", WEIGHTS, **where)
    commit = place.ann.revision("ann/wrong").commit
    for revision in (commit, "refs/heads/main"):
        with pytest.raises(GatedRepoError, match="initial"):
            hf_hub_download("ann/wrong", WEIGHTS, revision=revision, **where)
    with pytest.raises(GatedRepoError):
        snapshot_download("ann/wrong", **where)
    # Nothing is lost: a tag names the bytes, and our own client gets them.
    HfApi(place.hub.url, place.token).create_tag("ann/wrong", tag="as-pushed")
    raw = hf_hub_download("ann/wrong", WEIGHTS, revision="as-pushed", **where)
    hf_hub_download("ann/wrong", WEIGHTS, revision="refs/tags/as-pushed", **where)
    # A tag of an older hub with a name that leads to the branch makes no difference.
    with place.hub.registry.db.write() as session:
        found = load_repository(session, None, "ann/wrong")
        for odd in ("HEAD", "refs/heads/main"):
            head = found.head_id
            session.add(Ref(repository_id=found.id, kind="tag", name=odd, revision_id=head))
    for odd in ("HEAD", "refs/heads/main"):
        answer = place.hub.call("HEAD", f"/ann/wrong/resolve/{odd}/{WEIGHTS}", token=place.token)
        assert answer.headers["X-Error-Code"] == "GatedRepo"
    assert Path(raw).read_bytes() == (tmp_path / "a" / WEIGHTS).read_bytes()
    assert (place.ann.pull("ann/wrong") / WEIGHTS).read_bytes() == Path(raw).read_bytes()
    place.ann.set_conversion_rule("ann/wrong", "off")
    hf_hub_download("ann/wrong", WEIGHTS, force_download=True, **where)


def test_an_adapter_is_converted_by_itself_where_that_is_the_rule(
    place: Place, tmp_path: Path
) -> None:
    place.ann.create("ann/by-itself")
    place.ann.set_conversion_rule("ann/by-itself", "auto")
    expected = pushed(place, tmp_path / "a", "ann/by-itself", init_lora_weights="pissa")
    for _ in range(300):
        if place.report_of("ann/by-itself")["state"] == "plain":
            break
        time.sleep(0.1)
    at = place.ann.pull("ann/by-itself", to=tmp_path / "converted")
    found = logits(PeftModel.from_pretrained(load_base(place.base), at))
    assert torch.allclose(found, expected, atol=1e-4)
    assert place.report_of("ann/by-itself")["state"] == "plain"


def test_a_rule_is_set_by_administrators_alone(place: Place) -> None:
    from deltahub.client import Hub

    with Hub(place.hub.url, place.hub.user("bob")) as bob, pytest.raises(Forbidden):
        bob.set_conversion_rule("ann", "auto")
    done = deltahub("adapter", "rule", "ann", "ask", environment=place.environment)
    assert done.status == 0, done.err


def test_the_rule_in_force_is_shown_with_whose_it_is(place: Place) -> None:
    from deltahub.client import Hub

    def told(target: str) -> str:
        done = deltahub("adapter", "rule", target, environment=place.environment)
        assert done.status == 0, done.err
        return done.out.strip()

    token = place.hub.user("eve")
    environment = {**place.environment, "DELTAHUB_TOKEN": token}
    with Hub(place.hub.url, token) as eve:
        eve.create("eve/ruled")
        shown = deltahub("adapter", "rule", "eve/ruled", environment=environment)
        assert shown.out == "eve/ruled: ask (the default)\n"
        eve.set_conversion_rule("eve", "auto")
        assert eve.conversion_rule("eve/ruled").source == "namespace"
        eve.set_conversion_rule("eve/ruled", "off")
        shown = deltahub("adapter", "rule", "eve/ruled", "--json", environment=environment)
        assert shown.json() == {"target": "eve/ruled", "convert": "off", "source": "repository"}
        assert eve.conversion_rule("eve").convert == "auto"
        shown = deltahub("adapter", "rule", "eve/ruled", "inherit", environment=environment)
        assert shown.out == "eve/ruled: auto (the rule of the namespace)\n"
        eve.set_conversion_rule("eve", "inherit")
        assert eve.conversion_rule("eve/ruled").source == "default"
        eve.set_conversion_rule("eve/ruled", "off")
    # Whoever reads the repository may know; the namespace's rule is for those with a role there.
    assert told("eve/ruled") == "eve/ruled: off (the rule of the repository)"
    with pytest.raises(Forbidden, match="no role in eve"):
        place.ann.conversion_rule("eve")
    wrong = deltahub("adapter", "rule", "eve", "sometimes", environment=environment)
    assert wrong.status == 2
    assert "\\n" not in wrong.err


def test_a_missing_choice_is_told_on_one_line(place: Place) -> None:
    missing = deltahub("visibility", "ann/base", environment=place.environment)
    assert missing.status == 2
    assert "\\n" not in missing.err
    assert "private, public" in missing.err


def test_pissa_in_disguise_is_recognized(place: Place, tmp_path: Path) -> None:
    expected = trained_adapter(
        place.base, tmp_path / "a", init_lora_weights="pissa", with_init=True
    )
    path = tmp_path / "a" / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "init_lora_weights": True}))
    init = tmp_path / "a" / "pissa_init"
    init.rename(tmp_path / "kept")
    place.ann.push(tmp_path / "a", "ann/disguised", base="ann/base")
    report = place.report_of("ann/disguised")
    assert report["state"] == "quarantined"
    assert "first singular directions" in report["why"]
    # The way out that it names.
    (tmp_path / "kept").rename(init)
    place.ann.push(tmp_path / "a", "ann/disguised", base="ann/base")
    place.ann.convert_adapter("ann/disguised").wait()
    assert place.report_of("ann/disguised")["state"] == "plain"
    at = place.ann.pull("ann/disguised", to=tmp_path / "converted")
    found = logits(PeftModel.from_pretrained(load_base(place.base), at))
    assert torch.allclose(found, expected, atol=1e-4)


def test_a_broken_adapter_is_told_what_is_wrong(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a")
    tensors = load_file(tmp_path / "a" / WEIGHTS)
    name = min(tensors)
    odd = {**tensors, name: torch.full_like(tensors[name], torch.inf)}
    save_file(odd, tmp_path / "a" / WEIGHTS, {"format": "pt"})
    place.ann.push(tmp_path / "a", "ann/infinite", base="ann/base")
    report = place.report_of("ann/infinite")
    assert report["state"] == "broken"
    assert f"{name} has infinite or NaN elements" in " ".join(report["faults"])
    config = tmp_path / "a" / "adapter_config.json"
    good = config.read_text()
    config.write_text(json.dumps({**json.loads(good), "r": 0}))
    place.ann.push(tmp_path / "a", "ann/no-rank", base="ann/base")
    told = place.report_of("ann/no-rank")
    assert told["state"] == "broken"
    assert " r " in f" {told['faults'][0]} "
    config.write_text(good)
    del tensors[name]
    save_file(tensors, tmp_path / "a" / WEIGHTS, {"format": "pt"})
    place.ann.push(tmp_path / "a", "ann/half-there", base="ann/base")
    assert place.report_of("ann/half-there")["state"] == "broken"


def test_a_model_that_is_no_adapter_has_no_report(place: Place) -> None:
    with pytest.raises(EntryNotFound, match="is no adapter"):
        place.ann.adapter_report("ann/base")


def test_a_folder_is_looked_at_without_a_hub(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    folder = str(tmp_path / "a")
    done = deltahub("adapter", "lint", folder, "--base", str(place.base))
    assert done.status == 0, done.err
    assert ": convertible" in done.out
    (tmp_path / "a" / WEIGHTS).rename(tmp_path / "a" / "adapter_model.bin")
    done = deltahub("adapter", "lint", folder)
    assert done.status == 1
    assert "pickle" in done.out


def test_a_folder_is_looked_at_by_its_values(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    trained_adapter(place.base, folder, init_lora_weights="pissa")
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "init_lora_weights": True}))
    # Without the base nobody can tell.
    assert deltahub("adapter", "lint", str(folder)).status == 0
    done = deltahub("adapter", "lint", str(folder), "--base", str(place.base))
    assert done.status == 1
    assert ": quarantined" in done.out
    assert "first singular directions" in done.out
    trained_adapter(place.base, tmp_path / "b")
    done = deltahub("adapter", "lint", str(tmp_path / "b"), "--base", str(place.base))
    assert done.status == 0, done.out
    tensors = load_file(tmp_path / "b" / WEIGHTS)
    name = max(tensors)
    tensors[name].view(-1)[-1] = torch.nan
    save_file(tensors, tmp_path / "b" / WEIGHTS, {"format": "pt"})
    done = deltahub("adapter", "lint", str(tmp_path / "b"))
    assert done.status == 1
    assert f"{name} has infinite or NaN elements" in done.out


def test_an_adapter_is_pulled_with_its_base(place: Place, tmp_path: Path) -> None:
    expected = pushed(place, tmp_path / "a", "ann/both")
    done = deltahub("pull", "ann/both", "--with-base", environment=place.environment)
    assert done.status == 0, done.err
    adapter, base = done.out.split()
    found = logits(PeftModel.from_pretrained(load_base(Path(base)), adapter))
    assert torch.allclose(found, expected, atol=1e-5)
    told = deltahub("pull", "ann/both", "--with-base", "--json", environment=place.environment)
    assert told.json()["base"]["repository"] == "ann/base"
    refused = deltahub("pull", "ann/base", "--with-base", environment=place.environment)
    assert refused.status == 2
    assert "names no base" in refused.err


def test_adapters_are_compared_by_name_and_folder(place: Place, tmp_path: Path) -> None:
    pushed(place, tmp_path / "a", "ann/one")
    trained_adapter(place.base, tmp_path / "b", r=2)
    done = deltahub(
        "adapter", "compare", "ann/one", str(tmp_path / "b"), "--json",
        environment=place.environment,
    )  # fmt: skip
    assert done.status == 0, done.err
    told = done.json()
    assert len(told["modules"]) == 8
    assert all(0 < each["output_overlap"] < 1 for each in told["modules"])
    same = place.ann.compare_adapters("ann/one", str(tmp_path / "a"))
    assert same.cosine == pytest.approx(1)
    trained_adapter(place.base, tmp_path / "c", init_lora_weights="pissa")
    refused = deltahub("adapter", "compare", "ann/one", str(tmp_path / "c"),
                       environment=place.environment)  # fmt: skip
    assert refused.status == 2
    assert "changed its base" in refused.err
