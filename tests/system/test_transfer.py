"""A base is trained on, and an adapter with a kit moves along, on a real hub."""

from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from deltahub.methods.transfer.measures.agreement import agreement
from deltahub.methods.transfer.models.students import label
from support.transfer.place import transfer_place
from support.transfer.running import SHORT, TASK, TRAINING
from support.transfer.tiny_world import CONTRACT, tokenizer
from support.web.page_reader import Browser

pytestmark = pytest.mark.long


def right(model: Any, adapter: str | None) -> float:
    """Accuracy on examples that nobody has seen."""
    tests = TASK.examples(240, 0)[140:]
    found = label(model, tokenizer(), [each.text for each in tests], CONTRACT, adapter=adapter)
    wanted, said = ([each.completion for each in some] for some in (tests, found))
    return agreement(wanted, said, CONTRACT).value


def test_a_moved_adapter_does_on_the_new_base_what_it_did_on_the_old_one(tmp_path: Path) -> None:
    with transfer_place(tmp_path, "v2", amount=SHORT) as place:
        asked = {"rungs": ["copy", "trans_lora"], "n": 100, "budget": 20, "max_loss": 0.7}
        asked |= TRAINING
        job = place.ann.transfer_adapter("ann/teacher", "ann/v2", "ann/moved", **asked).wait()
        result: dict[str, Any] = dict(job.result or {})
        assert result["published"], result["report"]["summary"]
        assert (result["repository"], result["report"]["chosen"]) == ("ann/moved", result["chosen"])
        folder = place.ann.pull("ann/moved")
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "v2")
        alone = right(base, None)
        assert right(PeftModel.from_pretrained(base, folder, "moved"), "moved") > alone + 0.3
        browser = Browser(place.hub, place.token)
        done, told = (browser.get(f"/-/{at}") for at in (f"jobs/{job.id}", "reports/ann/moved"))
        for page in (done, told):
            assert f"It was moved by {result['chosen']}" in page.text
            assert "Answers like the old adapter" in page.text
            assert "/ann/v2" in page.links
        assert "/-/reports/ann/moved" in browser.get("/ann/moved").links
        assert "ann/v2" in browser.get("/ann/moved").text
