"""Makes one thing of the cache: a base, one training of a fine-tune, or the files of a pair."""

import hashlib
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.pairs import models, texts
from benchmarks.pairs.layout import MODEL, SNAPSHOT, Cache, load, publish, save, torch_dtype
from benchmarks.pairs.loop import Schedule, train
from benchmarks.pairs.recipes import DTYPES, LlamaBase, PackageBase, Pair, Run

_WEIGHTS = "weights.safetensors"
_ADAPTER = "adapter"
_TOKENIZER = "tokenizer.json"

Tensors = dict[str, torch.Tensor]


def make_base(cache: Cache, name: str) -> None:
    base = cache.recipes.bases[name]
    final = cache.base(name)
    folder = cache.scratch(final)
    if isinstance(base, PackageBase):
        weights, report = load(models.package_folder(base) / Path(base.file).name), {}
    else:
        weights, report = _train_llama(cache, base, folder)
    _save_all(weights, folder)
    publish(folder, final, report)


def _train_llama(cache: Cache, base: LlamaBase, folder: Path) -> tuple[Tensors, dict[str, Any]]:
    tokenizer = texts.tokenizer_of(base.vocabulary, base.text_bytes)
    tokenizer.save(str(folder / _TOKENIZER))
    model = models.build_llama(base)
    n = sum(p.numel() for p in model.parameters())
    print(f"  {base.name}: {n / 1e6:.1f} million parameters", flush=True)
    batch_of = texts.windows(
        tokenizer, base.corpus, base.text_bytes, base.batch, base.sequence, base.seed
    )
    state = cache.state(cache.base(base.name))
    snapshot = state.with_suffix(".snapshot")

    def after_step(step: int) -> None:
        if step == base.snapshot_step:
            save(model.state_dict(), snapshot, "F32")

    schedule = Schedule(base.steps, base.learning_rate, 0.01, base.seed, beta2=0.95, floor=0.1)
    progress = train(
        model, models.llama_loss(model, batch_of), schedule, state, base.name, after_step
    )
    if base.snapshot_step is not None:
        _save_all(load(snapshot), folder / SNAPSHOT)
        snapshot.unlink()
    state.unlink(missing_ok=True)
    return model.state_dict(), {"parameters": n, **progress.report()}


def make_run(cache: Cache, pair: Pair, run: Run) -> None:
    final = cache.run(pair, run)
    folder = cache.scratch(final)
    state = cache.state(final)
    model, loss = _fine_tune(cache, pair, run)
    schedule = Schedule(
        pair.steps,
        pair.learning_rate,
        pair.weight_decay,
        pair.seed,
        is_bf16=pair.method == "bf16",
    )
    label = f"{pair.name}, from {run.start}"
    progress = train(model, loss, schedule, state, label)
    if pair.method == "lora":
        model.save_pretrained(folder / _ADAPTER)
    else:
        save(model.state_dict(), folder / _WEIGHTS, "F32")
    publish(folder, final, {"trained_for": pair.name, "start": run.start, **progress.report()})
    state.unlink(missing_ok=True)


def _fine_tune(cache: Cache, pair: Pair, run: Run) -> tuple[torch.nn.Module, Any]:
    # peft asks transformers in a way that transformers will drop; the versions are pinned.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    base = cache.recipes.bases[pair.base]
    weights = _widened(load(cache.base(pair.base) / run.start / MODEL))
    if isinstance(base, PackageBase):
        return models.encoder_fine_tune(models.package_folder(base), pair, weights)
    tokenizer = Tokenizer.from_file(str(cache.base(pair.base) / _TOKENIZER))
    return models.llama_fine_tune(base, pair, weights, tokenizer)


def make_pair(cache: Cache, pair: Pair) -> None:
    final = cache.pair(pair)
    folder = cache.scratch(final)
    runs = {dtype: run for run in pair.runs for dtype in run.saves}
    for dtype in DTYPES:
        base_file = folder / dtype / "base.safetensors"
        tune_file = folder / dtype / "fine_tune.safetensors"
        base_file.parent.mkdir()
        if pair.method == "snapshot":
            shutil.copy(cache.base(pair.base) / SNAPSHOT / dtype / MODEL, base_file)
            shutil.copy(cache.base(pair.base) / dtype / MODEL, tune_file)
            continue
        if pair.base_values is None:
            shutil.copy(cache.base(pair.base) / dtype / MODEL, base_file)
        else:
            save(load(cache.base(pair.base) / pair.base_values / MODEL), base_file, dtype)
        if pair.method == "unrelated":
            assert pair.other is not None
            shutil.copy(cache.base(pair.other) / dtype / MODEL, tune_file)
        elif pair.method == "lora":
            adapter = cache.run(pair, runs[dtype]) / _ADAPTER
            save(_merged(cache, pair, adapter, load(base_file), dtype), tune_file, dtype)
        else:
            tuned = load(cache.run(pair, runs[dtype]) / _WEIGHTS)
            save(_with_the_rest(tuned, load(base_file)), tune_file, dtype)
    digests = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.safetensors"))
    }
    report: dict[str, Any] = {"pair": pair.name, "sha256": digests}
    if pair.method == "lora":
        report["adapter_bytes"] = _adapter_bytes(cache.run(pair, runs["BF16"]) / _ADAPTER)
    publish(folder, final, report)


def _merged(cache: Cache, pair: Pair, adapter: Path, base: Tensors, dtype: str) -> Tensors:
    """The adapter merged by peft into the base of that dtype.

    An F32 adapter is added in F32 and the sum rounded once. A narrower one is merged in the base's
    dtype: peft rounds the product of its factors, then the sum.
    """
    from peft import PeftModel

    recipe = cache.recipes.bases[pair.base]
    model = (
        models.build_encoder(models.package_folder(recipe))
        if isinstance(recipe, PackageBase)
        else models.build_llama(recipe)
    )
    merging = torch_dtype("F32" if pair.adapter == "F32" else dtype)
    known = {name: tensor for name, tensor in base.items() if tensor.is_floating_point()}
    model.load_state_dict(_widened(known))
    adapted = PeftModel.from_pretrained(
        model.to(merging), adapter, autocast_adapter_dtype=pair.adapter == "F32"
    )
    if pair.adapter != "F32":
        _round_adapter(adapted, torch_dtype(str(pair.adapter)))
    return _with_the_rest(adapted.merge_and_unload().state_dict(), base)


def _round_adapter(model: torch.nn.Module, dtype: torch.dtype) -> None:
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype).to(parameter.dtype)


def _adapter_bytes(folder: Path) -> int:
    """Bytes of the adapter's elements in a 16-bit dtype: the sum of r (m + n) x 2."""
    return sum(2 * tensor.numel() for tensor in load(folder / "adapter_model.safetensors").values())


def _with_the_rest(tuned: Tensors, base: Tensors) -> Tensors:
    """The fine-tune with what its model does not hold and the base's file does."""
    integers = {name: value for name, value in base.items() if not value.is_floating_point()}
    return {**tuned, **integers}


def _widened(tensors: Tensors) -> Tensors:
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def _save_all(weights: Tensors, folder: Path) -> None:
    for dtype in DTYPES:
        save(weights, folder / dtype / MODEL, dtype)
