"""Trains a family once: `python -m benchmarks.models.train --family demo --out .cache/demo-models`.

Each model lies in `<out>/<name>/<dtype>/`, as `save_pretrained` writes it. What is there already is
not trained again; a model appears whole or not at all.
"""

import argparse
import copy
import dataclasses
import hashlib
import json
import multiprocessing
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.models.sizes import FAMILIES, Family, FineTune

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BASE = "base"


def train_family(family: Family, out: Path, *, processes: int = 1) -> list[str]:
    """Makes every missing model of the family; the names, base first."""
    out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        if not _is_made(out, BASE, _fingerprint(family, None)):
            pool.submit(_make_base, family, out).result()
        missing = [
            tune
            for tune in family.fine_tunes
            if not _is_made(out, tune.name, _fingerprint(family, tune))
        ]
        for task in [pool.submit(_make_fine_tune, family, tune, out) for tune in missing]:
            task.result()
    return [BASE, *(tune.name for tune in family.fine_tunes)]


def model_folder(out: Path, name: str, dtype: str) -> Path:
    return out / name / dtype


def _fingerprint(family: Family, tune: FineTune | None) -> str:
    """What the model was trained with: another recipe is another model."""
    recipe = dataclasses.asdict(family)
    del recipe["fine_tunes"]
    recipe["fine_tune"] = dataclasses.asdict(tune) if tune else None
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def _is_made(out: Path, name: str, fingerprint: str) -> bool:
    marker = out / name / "made"
    return marker.is_file() and marker.read_text() == fingerprint


def _publish(folder: Path, out: Path, name: str, fingerprint: str) -> None:
    (folder / "made").write_text(fingerprint)
    shutil.rmtree(out / name, ignore_errors=True)
    folder.rename(out / name)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _make_base(family: Family, out: Path) -> None:
    # torch and transformers take seconds to import: only the processes that train pay.
    import torch

    from benchmarks.models import training
    from benchmarks.models.text import load_corpus

    torch.set_num_threads(1)
    text = load_corpus("python", family.text_bytes)
    tokenizer = training.train_tokenizer(text, family.vocabulary)
    model = training.build_model(family)
    n = sum(p.numel() for p in model.parameters())
    _say(f"training base: {n / 1e6:.1f} million parameters, {family.base_steps} steps")
    training.train(
        model,
        training.encode(tokenizer, text),
        family,
        steps=family.base_steps,
        learning_rate=family.base_learning_rate,
        seed=family.seed,
        label=BASE,
        say=_say,
    )
    folder = _scratch(out, BASE)
    for dtype in family.dtypes:
        _save(model, tokenizer, folder / dtype, dtype)
    _publish(folder, out, BASE, _fingerprint(family, None))


def _make_fine_tune(family: Family, tune: FineTune, out: Path) -> None:
    import warnings

    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoTokenizer, LlamaForCausalLM

    from benchmarks.models import training
    from benchmarks.models.text import load_corpus

    torch.set_num_threads(1)
    # peft asks transformers in a way that transformers will drop; the versions are pinned.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    start = model_folder(out, BASE, family.dtypes[0] if family.starts_from_saved else "F32")
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    if tune.rank is not None:
        torch.manual_seed(tune.seed)
        model = get_peft_model(
            model,
            LoraConfig(
                r=tune.rank,
                lora_alpha=2 * tune.rank,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            ),
        )
    _say(f"training {tune.name}: {tune.steps} steps at {tune.learning_rate}")
    training.train(
        model,
        training.encode(tokenizer, load_corpus(tune.corpus, family.text_bytes)),
        family,
        steps=tune.steps,
        learning_rate=tune.learning_rate,
        seed=tune.seed,
        label=tune.name,
        say=_say,
    )
    folder = _scratch(out, tune.name)
    if tune.rank is not None:
        model.save_pretrained(folder / "adapter")
    for dtype in family.dtypes:
        if tune.rank is None:
            _save(model, tokenizer, folder / dtype, dtype)
        else:
            # Merged into the base of that dtype, as its users would.
            base = LlamaForCausalLM.from_pretrained(
                model_folder(out, BASE, dtype), dtype=_torch_dtype(dtype)
            )
            merged = PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload()
            _save(merged, tokenizer, folder / dtype, dtype)
    _publish(folder, out, tune.name, _fingerprint(family, tune))


def _torch_dtype(name: str) -> "torch.dtype":
    import torch

    return {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]


def _save(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: Path, dtype: str
) -> None:
    """Saves a copy rounded to the dtype; the model itself keeps its precision."""
    copy.deepcopy(model).to(_torch_dtype(dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _scratch(out: Path, name: str) -> Path:
    folder = out / f".making-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="demo")
    parser.add_argument("--out", type=Path, default=Path(".cache/demo-models"))
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    train_family(FAMILIES[arguments.family], arguments.out, processes=arguments.processes)


if __name__ == "__main__":
    main()
