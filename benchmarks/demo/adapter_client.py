"""Somebody with PEFT and no word of DeltaHub: trains, pushes and loads a PiSSA adapter.

`adapter_client.py train BASE FOLDER REPOSITORY` trains the adapter on the base of the hub of
HF_ENDPOINT, saves it as PEFT does, and uploads it. `adapter_client.py load BASE FOLDER REPOSITORY`
loads it from the hub on the base, and prints as JSON how far its logits are from those of the
training, and those of an engine that adds A and B to the base without another thought.
"""

import argparse
import inspect
import json
import textwrap
import warnings
from pathlib import Path
from typing import Any

_STEPS = 30
_SEEN = "logits of the training.pt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["train", "load"])
    parser.add_argument("base")
    parser.add_argument("folder", type=Path)
    parser.add_argument("repository")
    arguments = parser.parse_args()

    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    if arguments.action == "train":
        train(arguments.base, arguments.folder, arguments.repository)
    else:
        load(arguments.base, arguments.folder, arguments.repository)


def base_and_tokens(base: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(base)(inspect.getsource(textwrap), return_tensors="pt")
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tokens.input_ids[0]


def train(base: str, folder: Path, repository: str) -> None:
    import torch
    from huggingface_hub import HfApi
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    model, tokens = base_and_tokens(base)
    config = LoraConfig(
        r=8, lora_alpha=8, init_lora_weights="pissa", target_modules="all-linear",
        task_type="CAUSAL_LM",
    )  # fmt: skip
    adapted = get_peft_model(model, config)
    rows = torch.stack(tokens[: 16 * 64].split(64))
    trained = [each for each in adapted.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for _ in range(_STEPS):
        loss = adapted(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    adapted.save_pretrained(folder)
    torch.save(_logits(adapted, tokens), folder.parent / _SEEN)
    HfApi().create_repo(repository)
    HfApi().upload_folder(repo_id=repository, folder_path=folder)


def load(base: str, folder: Path, repository: str) -> None:
    import torch
    from peft import PeftModel

    expected = torch.load(folder.parent / _SEEN)
    model, tokens = base_and_tokens(base)
    before = _logits(model, tokens)
    found = _logits(PeftModel.from_pretrained(model, repository), tokens)
    # The raw adapter as engines take it: they ignore how it was initialized.
    plain = folder.parent / "raw"
    plain.mkdir()
    for path in folder.iterdir():
        if path.suffix in (".json", ".safetensors"):
            (plain / path.name).write_bytes(path.read_bytes())
    config = json.loads((plain / "adapter_config.json").read_text())
    config["init_lora_weights"] = True
    (plain / "adapter_config.json").write_text(json.dumps(config))
    raw = _logits(PeftModel.from_pretrained(base_and_tokens(base)[0], str(plain)), tokens)
    print(
        json.dumps({
            "effect": float((expected - before).abs().max()),
            "loaded": float((found - expected).abs().max()),
            "raw": float((raw - expected).abs().max()),
        })
    )  # fmt: skip


def _logits(model: Any, tokens: Any) -> Any:
    import torch

    model.eval()
    with torch.inference_mode():
        return model(input_ids=tokens[None, :200]).logits


if __name__ == "__main__":
    main()
