"""The perplexity of a text, by a model and by its export.

Only safetensors are loaded, offline, and no code of the model.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltahub.codecs.errors import how_to_install
from deltahub.methods.errors import CannotExport
from deltahub.methods.exporting.report import Perplexity

if TYPE_CHECKING:
    import torch

# Tokens that are predicted together. A longer context needs more memory for logits, and changes
# the perplexities before and after alike.
WINDOW: Final = 256
# Names by which a config tells the number of positions that a model has.
_POSITIONS: Final = ("max_position_embeddings", "n_positions")
_ONLY: Final[dict[str, Any]] = {"local_files_only": True, "trust_remote_code": False}
# Errors of transformers for files that it cannot load.
_FAULTS: Final = (
    OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError, IndexError,
)  # fmt: skip
_CAUSAL: Final = ("ForCausalLM", "LMHeadModel")
# A tokenizer has one of these files.
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def check_measurable(config: bytes | None, has_tokenizer: bool, title: str) -> None:
    """CannotExport unless a model has a perplexity. config: its config.json."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as exc:
        raise CannotExport(
            f"to measure a perplexity the worker needs {exc.name}: on its machine,"
            f" {how_to_install('compute')}"
        ) from exc
    try:
        told = json.loads(config or b"{}")
        name = str((told.get("architectures") or ["model without architectures"])[0])
    except (ValueError, AttributeError, TypeError) as exc:
        raise CannotExport(f"config.json of {title} is no description of a model: {exc}") from exc
    if told.get("auto_map"):
        raise CannotExport(
            f"{title} needs code of its own (auto_map in config.json), which a job never runs:"
            " leave text out"
        )
    if not name.endswith(_CAUSAL):
        raise CannotExport(
            f"{title} is a {name}: only causal models have a perplexity; leave text out"
        )
    if not has_tokenizer:
        raise CannotExport(
            f"{title} has no tokenizer ({', '.join(TOKENIZERS)}), which a perplexity is measured"
            " with: push it, or leave text out"
        )


def tokens_of(folder: Path, text: str) -> "torch.Tensor":
    """The tokens of a text, by the tokenizer in a model's folder. CannotExport if it cannot be
    loaded, or finds fewer than two.
    """
    from transformers import AutoTokenizer

    _quieten()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **_ONLY)
        tokens: torch.Tensor = tokenizer(text, return_tensors="pt").input_ids[0]
    except _FAULTS as exc:
        raise CannotExport(
            f"transformers cannot load the model's tokenizer: {exc}; leave text out"
        ) from exc
    if len(tokens) < 2:
        raise CannotExport("the text has fewer than two tokens: give a longer one")
    return tokens


def measure_perplexity(plain: Path, export: Path, text: str, threads: int) -> Perplexity:
    """Of a text, by the model in one folder and its export in another. CannotExport."""
    import torch
    from transformers import AutoModelForCausalLM

    from deltahub.methods.inference.model import load_folder

    torch.set_num_threads(threads)
    tokens = tokens_of(plain, text)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            plain, use_safetensors=True, dtype="auto", **_ONLY
        )
    except _FAULTS as exc:
        raise CannotExport(f"transformers cannot load the model: {exc}; leave text out") from exc
    window = _window_of(model.config)
    before = _perplexity(model.eval(), tokens, window)
    del model
    after = _perplexity(load_folder(export, threads=threads), tokens, window)
    return Perplexity(n_tokens=len(tokens) - 1, before=before, after=after)


def _quieten() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _window_of(config: Any) -> int:
    """Tokens that are predicted together: no more than the model has positions for."""
    told = (getattr(config, name, None) for name in _POSITIONS)
    return min([WINDOW, *(each for each in told if type(each) is int and each > 0)])


def _perplexity(model: Any, tokens: "torch.Tensor", size: int) -> float:
    """exp of the mean loss of each token but the first, in windows of `size` tokens that overlap by
    one.
    """
    import torch

    lost = 0.0
    try:
        with torch.inference_mode():
            for begin in range(0, len(tokens) - 1, size):
                window = tokens[begin : begin + size + 1]
                logits = model(input_ids=window[None, :-1]).logits[0].float()
                loss = torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum")
                lost += float(loss)
    except (RuntimeError, IndexError) as exc:
        raise CannotExport(f"the model cannot read the text: {exc}; leave text out") from exc
    mean = lost / (len(tokens) - 1)
    # Beyond this a float has no exponential, and no model is of use long before.
    found = math.exp(min(mean, 700.0))
    if math.isnan(found):
        raise CannotExport("the perplexity of the text is no number: the model gives NaN for it")
    return float(f"{found:.6g}")
