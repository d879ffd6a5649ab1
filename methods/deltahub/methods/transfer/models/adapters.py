"""Adapters on a resident base: made, loaded, switched and saved by PEFT."""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file

from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.errors import CannotTransfer
from deltahub.methods.kinds.weights.targets import TRANSPOSED_MODELS
from deltahub.methods.transfer.models.encoding import inner_of
from deltahub.methods.transfer.recipe import Recipe

TEACHER: Final = "teacher"
STUDENT: Final = "student"
DISCRIMINATOR: Final = "discriminator"


_ONLY_LOCAL: Final[dict[str, Any]] = {"local_files_only": True, "trust_remote_code": False}
# What transformers raises for files that it does not understand.
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars and notes while models load: callers show their own progress.

    Everything is as before afterwards: these are settings of the whole process, which may be the
    program of somebody who uses the SDK.
    """
    from transformers.utils import logging

    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            # PEFT asks each model for an attribute that transformers has renamed.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_base(folder: Path, device: str = "cpu") -> tuple[Any, Any]:
    """(model, tokenizer) of a folder. Only safetensors are read, and no code of the model is run.

    CannotTransfer if transformers cannot load it.
    """
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(folder)
    try:
        with _quiet():
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, use_safetensors=True, dtype="auto", **_ONLY_LOCAL
            )
    except _UNREADABLE as exc:
        raise CannotTransfer(f"transformers cannot load the base: {exc}") from exc
    return model.to(device).eval(), tokenizer


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder. CannotTransfer if transformers cannot load it."""
    from transformers import AutoTokenizer

    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(folder, **_ONLY_LOCAL)
    except _UNREADABLE as exc:
        raise CannotTransfer(f"transformers cannot load the base's tokenizer: {exc}") from exc


def add_adapter(model: Any, recipe: Recipe, name: str) -> Any:
    """The model with a new, active adapter that changes nothing yet.

    The first matrix is random, from the recipe's seed. CannotTransfer if the base lacks the
    modules.
    """
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=None if recipe.targets is None else list(recipe.targets),
        use_dora=recipe.kind == "dora",
        fan_in_fan_out=inner_of(model).config.model_type in TRANSPOSED_MODELS,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), _quiet():
        torch.manual_seed(recipe.seed)
        try:
            if not isinstance(model, PeftModel):
                return get_peft_model(model, config, adapter_name=name)
            model.add_adapter(name, config)
        except ValueError as exc:
            raise CannotTransfer(
                f"no adapter fits the base: {exc}. Name modules that it has in `targets`"
            ) from exc
    model.set_adapter(name)
    return model


def load_adapter(model: Any, folder: Path, name: str) -> Any:
    """The model with an adapter of a folder, active and not to be trained."""
    if not (folder / WEIGHTS_FILE).is_file():
        raise CannotTransfer(f"the adapter has no {WEIGHTS_FILE}, and no other file is read")
    try:
        with _quiet():
            if not isinstance(model, PeftModel):
                return PeftModel.from_pretrained(model, folder, adapter_name=name).eval()
            model.load_adapter(str(folder), adapter_name=name)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as exc:
        raise CannotTransfer(f"PEFT cannot load the adapter onto this base: {exc}") from exc
    model.set_adapter(name)
    return model.eval()


@contextmanager
def using(model: Any, name: str | None) -> Iterator[None]:
    """With one of the model's adapters active; with none for None."""
    if not isinstance(model, PeftModel):
        if name is not None:
            raise CannotTransfer(f"the model has no adapter {name}: load it first")
        yield
        return
    if name is None:
        with model.disable_adapter():
            yield
        return
    before = model.active_adapter
    model.set_adapter(name)
    try:
        yield
    finally:
        model.set_adapter(before)


def state_of(model: Any, name: str) -> dict[str, torch.Tensor]:
    """A copy of an adapter's tensors, under the names that PEFT stores them by."""
    state = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    return {key: each.detach().cpu().contiguous().clone() for key, each in state.items()}


def set_state(model: Any, name: str, state: Mapping[str, torch.Tensor]) -> None:
    """Give an adapter these tensors. CannotTransfer if it has others, or in other shapes."""
    own = state_of(model, name)
    for key, each in state.items():
        if key not in own:
            raise CannotTransfer(f"the adapter to start from has {key}, which this one lacks")
        if own[key].shape != each.shape:
            raise CannotTransfer(
                f"the adapter to start from has {key} in the shape {tuple(each.shape)}, and this"
                f" one in {tuple(own[key].shape)}: train with the same rank and modules"
            )
    set_peft_model_state_dict(model, dict(state), adapter_name=name)


def save_adapter(model: Any, name: str, folder: Path, base: str, revision: str | None) -> None:
    """Write adapter_config.json and the tensors of an adapter. base, revision: that it is for."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = model.peft_config[name].to_dict()
    config |= {
        "base_model_name_or_path": base,
        "revision": revision,
        "inference_mode": True,
        "auto_mapping": None,
    }
    for key, value in config.items():
        if isinstance(value, set):
            config[key] = sorted(value)
    if isinstance(config.get("target_modules"), list):
        config["target_modules"] = sorted(config["target_modules"])
    text = json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"
    (folder / CONFIG_FILE).write_text(text)
    save_file(state_of(model, name), folder / WEIGHTS_FILE, metadata={"format": "pt"})
