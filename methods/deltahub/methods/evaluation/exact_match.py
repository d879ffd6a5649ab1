"""The share of examples that a model answers exactly.

A causal model continues `input` greedily for as many tokens as `expected` has; its text must be
`expected`. A classifier's most likely label, by name or number, must be. Only safetensors are
loaded, offline, and no code of the model.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltahub.codecs.errors import how_to_install
from deltahub.methods.errors import CannotMerge
from deltahub.methods.kinds.merge import Example

if TYPE_CHECKING:
    import torch

_CAUSAL: Final = ("ForCausalLM", "LMHeadModel")
_CLASSIFIER: Final = "ForSequenceClassification"
_BATCH: Final = 16


def require_packages() -> None:
    """CannotMerge, which names the extra, without torch or transformers."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as exc:
        raise CannotMerge(
            f"to run models the worker needs {exc.name}: on its machine,"
            f" {how_to_install('compute')}"
        ) from exc


def check_model(config: bytes, title: str) -> str:
    """What kind of model its config.json describes: causal or classifier. CannotMerge for others,
    and for one that needs code of its own.
    """
    try:
        found: dict[str, Any] = json.loads(config)
        names = [str(each) for each in found.get("architectures") or [""]]
    except (ValueError, AttributeError, TypeError) as exc:
        raise CannotMerge(f"config.json of {title} is no description of a model: {exc}") from exc
    if found.get("auto_map"):
        raise CannotMerge(
            f"{title} needs code of its own (auto_map in config.json), which a job never runs"
        )
    if names[0].endswith(_CAUSAL):
        return "causal"
    if names[0].endswith(_CLASSIFIER):
        return "classifier"
    raise CannotMerge(
        f"{title} is a {names[0] or 'model without architectures in config.json'}: only causal"
        " models and sequence classifiers can be evaluated"
    )


def device_of(name: str) -> str:
    """The device that `auto`, `cpu` or `cuda:N` means here; CannotMerge without such a GPU."""
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    number = name.removeprefix("cuda:")
    if number != name and (
        not torch.cuda.is_available() or int(number) >= torch.cuda.device_count()
    ):
        raise CannotMerge(
            f"there is no device {name} here: choose cpu, or take a machine with a GPU, install a"
            f" torch for CUDA, and {how_to_install('gpu')}"
        )
    return name


def accuracy(folder: Path, examples: Sequence[Example], kind: str, device: str) -> float:
    """The share of examples that the model in a folder answers exactly."""
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    only: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **only)
        auto = AutoModelForCausalLM if kind == "causal" else AutoModelForSequenceClassification
        model: Any = auto.from_pretrained(folder, use_safetensors=True, dtype="auto", **only)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as exc:
        raise CannotMerge(f"transformers cannot load the model: {exc}") from exc
    model = model.to(device).eval()
    right = _right_causal if kind == "causal" else _right_labels
    with torch.inference_mode():
        n_right = sum(
            right(model, tokenizer, examples[i : i + _BATCH], device)
            for i in range(0, len(examples), _BATCH)
        )
    return n_right / len(examples)


def _right_causal(model: Any, tokenizer: Any, examples: Sequence[Example], device: str) -> int:
    n_right = 0
    for example in examples:
        prompt = tokenizer(example.input, return_tensors="pt").input_ids.to(device)
        wanted = tokenizer(example.expected, add_special_tokens=False).input_ids
        made: torch.Tensor = model.generate(
            prompt,
            attention_mask=prompt.new_ones(prompt.shape),
            max_new_tokens=len(wanted) + 1,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
        )
        text = tokenizer.decode(made[0, prompt.shape[1] :][: len(wanted)], skip_special_tokens=True)
        n_right += text.strip() == example.expected.strip()
    return n_right


def _right_labels(model: Any, tokenizer: Any, examples: Sequence[Example], device: str) -> int:
    names = model.config.id2label
    n_right = 0
    for example in examples:
        given = tokenizer(example.input, return_tensors="pt", truncation=True).to(device)
        label = int(model(**given).logits[0].argmax())
        n_right += example.expected.strip() in (str(label), str(names.get(label, label)))
    return n_right
