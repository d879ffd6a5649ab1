"""Whether two folders hold the same model: every file's SHA-256, and every logit bit for bit."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_PROMPT = "def encode(self, values: list[int]) -> bytes:\n    return b''.join("


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a model folder, by its path in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[path.relative_to(folder).as_posix()] = digest
    return found


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def differences(original: Path, pulled: Path) -> list[str]:
    """What is not the same, as sentences; an empty list is the proof."""
    theirs, ours = hashes(pulled), hashes(original)
    found = [
        f"{path}: SHA-256 differs, or one of the two lacks it"
        for path in sorted(theirs.keys() | ours.keys())
        if theirs.get(path) != ours.get(path)
    ]
    if not found and not _same_logits(original, pulled):
        found.append("the logits differ")
    return found


def _same_logits(original: Path, pulled: Path) -> bool:
    import torch

    first, second = _logits(original), _logits(pulled)
    # As bits: equality of floats would call -0.0 and 0.0 the same, and NaN different from itself.
    same = first.shape == second.shape and first.dtype == second.dtype
    return same and torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def _logits(folder: Path) -> "torch.Tensor":
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    tokens = tokenizer(_PROMPT, return_tensors="pt").input_ids
    with torch.inference_mode():
        return model(tokens).logits.contiguous()
