"""What cannot be moved is refused when it is asked for, or by the first step, and says why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from deltahub.codecs.exports.file import FILE_NAME
from deltahub.methods.adapters.lora import CONFIG_FILE
from deltahub.methods.kinds.transfer_adapter import TransferAdapterArguments
from deltahub.registry import Caller, Registry
from deltahub.registry.errors import InvalidRequest, RepositoryNotFound
from deltahub.workers.failures import StepFailed
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry
from support.transfer.running import (
    asked,
    asked_with_prompts,
    base_files,
    files_of,
    prompts,
    push_world,
    run_transfer,
    teacher_files,
)
from support.transfer.tiny_world import tokenizer

World = tuple[Registry, Caller]
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with opened_registry(tmp_path_factory.mktemp("refusals")) as reg:
        ann = caller(reg, "ann")
        push_world(reg, ann)
        v1 = base_files("v1")
        without = {path: data for path, data in v1.items() if "tokenizer" not in path}
        push_ingested(reg, ann, "ann/mute", without)
        push_ingested(reg, ann, "ann/export", {FILE_NAME: v1[WEIGHTS]})
        push_ingested(reg, ann, "ann/secret", base_files("twin"), private=True)
        huge = json.loads(v1["config.json"]) | {"hidden_size": 1 << 20, "num_hidden_layers": 4096}
        push_ingested(reg, ann, "ann/huge", v1 | {"config.json": json.dumps(huge).encode()})
        pissa = teacher_files("ann/v1")
        config = json.loads(pissa[CONFIG_FILE]) | {"init_lora_weights": "pissa"}
        changed = pissa | {CONFIG_FILE: json.dumps(config).encode()}
        push_ingested(reg, ann, "ann/pissa", changed, base="ann/v1")
        push_ingested(reg, ann, "ann/orphan", pissa)
        yield reg, ann


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adapter": "ann/v1", "base": "ann/mute"}, "is no adapter"),
        ({"base": "ann/pissa"}, "is an adapter: name the model"),
        ({"base": "ann/export"}, "is an export: name the model"),
        ({"base": "ann/v1"}, "belongs to ann/v1@"),
        ({"adapter": "ann/orphan", "base": "ann/mute"}, "by --base"),
    ],
)
def test_it_is_refused_when_it_is_asked_for(world: World, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        asked(*world, **given)


def test_who_may_not_read_the_target_is_told_of_none(world: World) -> None:
    reg, _ = world
    bob = caller(reg, "bob")
    with pytest.raises(RepositoryNotFound, match="ann/secret"):
        asked(reg, bob, adapter="ann/teacher", base="ann/secret", name="bob/x")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adapter": "ann/pissa", "base": "ann/mute"}, "deltahub adapter convert ann/pissa"),
        ({"base": "ann/mute"}, "ann/mute@.* has no tokenizer"),
        ({"base": "ann/huge"}, "moving an adapter to ann/huge@.* of memory on cpu"),
    ],
)
def test_the_first_step_refuses_it(world: World, given: dict[str, Any], said: str) -> None:
    reg, ann = world
    begun: list[str] = []

    def step(name: str, function: Any) -> Any:
        begun.append(name)
        return function()

    with pytest.raises(StepFailed, match=said) as failed:
        run_transfer(reg, asked_with_prompts(reg, ann, **given), step)
    assert failed.value.code == "cannot_transfer"
    assert begun == ["look at the models"]


@pytest.fixture(scope="module")
def gpt2(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base of another architecture, which nobody has trained."""
    folder: Path = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(
        vocab_size=len(tokenizer()), n_positions=256, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=2, eos_token_id=2,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    push_ingested(*world, "ann/gpt2", files_of(folder))
    return "ann/gpt2"


def test_modules_that_the_target_lacks_are_named(world: World, gpt2: str) -> None:
    reg, ann = world
    result = run_transfer(reg, asked_with_prompts(reg, ann, base=gpt2, dry_run=True))
    why = {each["rung"]: each["why_not"] for each in result["estimate"]["rungs"]}
    assert "which the new base does not have: train it there instead" in why["copy"]
    assert why["titok"] is None


def test_nothing_moves_by_a_way_that_needs_them(world: World, gpt2: str) -> None:
    reg, ann = world
    given = {"base": gpt2, "n": 8, "rungs": ["copy", "activation_map"]}
    result = run_transfer(reg, asked_with_prompts(reg, ann, **given))
    assert not result["published"]
    assert (result["chosen"], result["agreed"]) == ("freeze", None)
    assert result["reasons"] == ["no way to move it could be measured"]
    why = {each["rung"]: each["why_not"] for each in result["report"]["rungs"]}
    assert "the base has no module model.layers.0" in why["activation_map"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompts": "one\ntwo"}, "2 different lines"),
        ({"prompts": "\n".join(map(str, range(65)))}, "65 different lines"),
        ({"template": "Q: {input}"}, "template is of prompts"),
        ({"prompts": prompts(), "template": "no input"}, "has {input} once"),
        ({"rungs": ["copy", "copy"]}, "named twice"),
        ({"n": 100_000, "budget": 21}, "2,100,000 draws, and a move makes at most 2,000,000"),
        ({"max_new_tokens": 9}, "max_new_tokens is of prompts"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(given: dict[str, Any], said: str) -> None:
    names = {"adapter": "a/b", "base": "a/c", "name": "a/d"}
    with pytest.raises(ValueError, match=said):
        TransferAdapterArguments.model_validate(names | given)
