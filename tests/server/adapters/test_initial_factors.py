"""Adapters of kinds that nobody can compute again are converted by the factors that were kept."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Trainer, TrainingArguments

from deltahub.client import InvalidArgument
from deltahub.client.transfer import initial_factors_callback, keep_initial_factors
from support.adapters.place import Place
from support.adapters.tuning import TARGETS, batch, load_base, logits, train


def with_corda(base: Path) -> Any:
    from peft.tuners.lora.config import CordaConfig
    from peft.tuners.lora.corda import preprocess_corda

    model = load_base(base)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=TARGETS, init_lora_weights="corda",
        corda_config=CordaConfig(corda_method="ipm"),
    )  # fmt: skip

    def run() -> None:
        for each in batch("next")[0]:
            model(input_ids=each[None])  # it takes one text at a time

    preprocess_corda(model, config, run_model=run)
    return get_peft_model(model, config)


def with_lora_ga(base: Path) -> Any:
    from peft import LoraGAConfig
    from peft.tuners.lora.loraga import preprocess_loraga

    model = load_base(base)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=TARGETS, init_lora_weights="lora_ga",
        lora_ga_config=LoraGAConfig(),
    )  # fmt: skip
    asked, answers = batch("next")

    def step() -> None:
        found = model(input_ids=asked).logits[:, -1]
        torch.autograd.backward(torch.nn.functional.cross_entropy(found, answers))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hooks without inputs that need gradients
        preprocess_loraga(model, config, step)
    return get_peft_model(model, config)


@pytest.mark.parametrize("make", [with_corda, with_lora_ga])
def test_the_kept_factors_make_it_a_plain_lora(place: Place, tmp_path: Path, make: Any) -> None:
    kind = make.__name__.removeprefix("with_")
    model = make(place.base)
    with keep_initial_factors(model):
        train(model)
        model.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / f"{kind}_init" / "adapter_model.safetensors").is_file()
    place.ann.push(tmp_path / "adapter", f"ann/{kind}", base="ann/base")
    job = place.ann.convert_adapter(f"ann/{kind}").wait()
    assert job.result is not None
    assert job.result["conversion"]["source"] == f"{kind}_init/ of the adapter"
    at = place.ann.pull(f"ann/{kind}", to=tmp_path / "converted")
    found = logits(PeftModel.from_pretrained(load_base(place.base), at))
    expected = logits(model)
    assert torch.allclose(found, expected, atol=2e-4 * float(expected.abs().max()))


def test_a_trainer_keeps_them_beside_each_checkpoint(place: Place, tmp_path: Path) -> None:
    torch.manual_seed(5)
    config = LoraConfig(r=4, target_modules=TARGETS, init_lora_weights="pissa_niter_4")
    model = get_peft_model(load_base(place.base), config)
    asked, answers = batch("next")
    rows = [
        {"input_ids": torch.cat([one, two[None]]), "labels": torch.cat([one, two[None]])}
        for one, two in zip(asked, answers, strict=True)
    ]
    arguments = TrainingArguments(
        tmp_path / "out", max_steps=4, save_steps=2, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[initial_factors_callback()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
        trainer.save_model(tmp_path / "final")
    for folder in (tmp_path / "out" / "checkpoint-2", tmp_path / "final"):
        assert (folder / "pissa_init" / "adapter_model.safetensors").is_file()
    place.ann.push(tmp_path / "final", "ann/trained", base="ann/base")
    place.ann.convert_adapter("ann/trained").wait()
    at = place.ann.pull("ann/trained", to=tmp_path / "converted")
    found = logits(PeftModel.from_pretrained(load_base(place.base), at))
    assert torch.allclose(found, logits(model), atol=1e-4)


def test_a_model_without_an_adapter_is_refused(place: Place) -> None:
    with (
        pytest.raises(InvalidArgument, match="has no LoRA named default"),
        keep_initial_factors(load_base(place.base)),
    ):
        pass
