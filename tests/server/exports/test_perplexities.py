"""An export with a text tells how well the model and the export predict it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from deltahub.client import JobFailed
from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.perplexity import measure_perplexity
from support.exporting.llamas import TEXT, write_llama
from support.exporting.place import Place
from support.service.client_process import deltahub


def plain_perplexity(folder: Path, text: str) -> float:
    """In one window."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(input_ids=tokens[:, :-1]).logits[0].float()
    return float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).exp())


def test_it_is_that_of_the_model_before_and_after(place: Place) -> None:
    place.model("bf16")
    text = TEXT[:64]  # the model has 64 positions
    _, report = place.export("bf16", "scored", bits=0, text=text)
    found = report["perplexity"]
    assert found["n_tokens"] == len(text) - 1
    expected = plain_perplexity(place.folder("bf16"), text)
    assert found["before"] == pytest.approx(expected, rel=1e-2)
    assert found["before"] < 30  # of 128 letters: it was trained on them
    assert found["after"] != found["before"]
    _, exact = place.export("bf16", "scored-exact", text=TEXT)
    assert exact["perplexity"]["after"] == exact["perplexity"]["before"]
    card = (place.ann.pull("ann/scored") / "README.md").read_text()
    assert "the perplexity of the given text was" in card


def test_the_command_takes_a_file(place: Place, tmp_path: Path) -> None:
    place.model("bf16")
    path = tmp_path / "text.txt"
    command = ("export", "neuzip", "ann/bf16", "--name", "ann/scored-by-command", "--text")
    path.write_text(TEXT)
    told = deltahub(*command, str(path), environment=place.environment)
    assert told.status == 0, told.err
    assert "the perplexity of the given text was" in told.out
    for data, fault in ((b"\xff\xfe", "is no text in UTF-8"), (b"a" * (1 << 20) + b"a", "at most")):
        path.write_bytes(data)
        refused = deltahub(*command, str(path), "--json", environment=place.environment)
        assert refused.status == 2
        assert fault in refused.error()["message"]


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("coded", {"auto_map": {"AutoModel": "m.Model"}}, "needs code of its own"),
        ("labels", {"architectures": ["LlamaForSequenceClassification"]}, "only causal models"),
        ("mute", None, "has no tokenizer"),
    ],
)
def test_a_model_that_predicts_no_text_is_told_at_once(
    place: Place, name: str, change: dict[str, object] | None, fault: str
) -> None:
    place.model("bf16")
    folder = place.folder(name)
    folder.mkdir()
    for path in place.folder("bf16").iterdir():
        if change is not None or "token" not in path.name:
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | (change or {})
    (folder / "config.json").write_text(json.dumps(config))
    place.ann.push(folder, f"ann/{name}")
    running = place.ann.export_neuzip(f"ann/{name}", "ann/never", text=TEXT, dry_run=True)
    with pytest.raises(JobFailed, match=fault):
        running.wait()


def test_a_model_of_few_positions_is_scored_in_windows_that_it_can_read(place: Place) -> None:
    place.model("bf16")
    torch.manual_seed(0)
    settings = GPT2Config(
        vocab_size=128, n_positions=32, n_embd=64, n_layer=1, n_head=4, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    folder = place.folder("short")
    GPT2LMHeadModel(settings).to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(place.folder("bf16")).save_pretrained(folder)
    place.ann.push(folder, "ann/short")
    _, report = place.export("short", "short-scored", text=TEXT[:100])
    found = report["perplexity"]
    assert found["n_tokens"] == 99
    assert found["after"] == found["before"]


def test_a_tokenizer_that_cannot_be_loaded_is_told_at_once(place: Place) -> None:
    place.model("bf16")
    folder = place.folder("garbled")
    shutil.copytree(place.folder("bf16"), folder)
    (folder / "tokenizer.json").write_text("{}")
    place.ann.push(folder, "ann/garbled")
    running = place.ann.export_neuzip("ann/garbled", "ann/never", text=TEXT, dry_run=True)
    with pytest.raises(JobFailed, match=r"cannot load the model's tokenizer.*leave text out"):
        running.wait()


def test_the_estimate_counts_the_plain_model_that_a_text_is_scored_by(place: Place) -> None:
    place.model("bf16")

    def memory(**options: object) -> int:
        job = place.ann.export_neuzip("ann/bf16", "ann/never", dry_run=True, **options).wait()
        assert job.result is not None
        found: int = job.result["estimate"]["memory_bytes"]
        return found

    size = (place.folder("bf16") / "model.safetensors").stat().st_size
    assert memory(text=TEXT) > memory() + size


def test_a_text_that_the_model_cannot_read_is_told(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_llama(model)
    config = json.loads((model / "tokenizer.json").read_text())
    config["model"]["vocab"]["q"] = 5000  # beyond the model's 128 tokens
    (model / "tokenizer.json").write_text(json.dumps(config))
    with pytest.raises(CannotExport, match=r"cannot read the text: .*leave text out"):
        measure_perplexity(model, model, "the quick", 1)
