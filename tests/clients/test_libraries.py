"""transformers and peft, as they are installed today, load from the hub and push to it."""

import pytest

from clients.conftest import Library, World
from clients.machine import Machine

LOAD = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(1)
tokenizer = AutoTokenizer.from_pretrained("alice/tiny")
ids = tokenizer("def decode(self, s):", return_tensors="pt")["input_ids"]
def same(first, second):
    first, second = first.state_dict(), second.state_dict()
    return first.keys() == second.keys() and all(map(torch.equal, first.values(), second.values()))
load = AutoModelForCausalLM.from_pretrained
models = {name: (load(name), load(folder)) for name, folder in folders.items()}
local = AutoTokenizer.from_pretrained(folders["alice/tiny"])
result = {
    "ids": ids.tolist(),
    "local ids": local("def decode(self, s):")["input_ids"],
    "same": {name: same(*both) for name, both in models.items()},
    "type": str(next(models["alice/tiny"][0].parameters()).dtype),
    "config": AutoConfig.from_pretrained("alice/tiny", revision="dev/x").model_type,
    "old": caught(lambda: AutoModelForCausalLM.from_pretrained("alice/tiny", revision="v1")),
    "revision": caught(lambda: AutoConfig.from_pretrained("alice/tiny", revision="nope")),
    "missing": caught(lambda: AutoConfig.from_pretrained("alice/nowhere")),
}
"""
ADAPTER = """
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
base = AutoModelForCausalLM.from_pretrained("alice/tiny")
plain = {key: value.clone() for key, value in base.state_dict().items()}
adapted = PeftModel.from_pretrained(base, "alice/lora")
named = AutoPeftModelForCausalLM.from_pretrained("alice/lora")
local = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("alice/tiny"), folder)
ids = torch.arange(24).reshape(2, 12)
with torch.no_grad():
    logits = [one(input_ids=ids).logits for one in (adapted, named, local)]
result = {
    "base": adapted.peft_config["default"].base_model_name_or_path,
    "same": [torch.equal(logits[0], one) for one in logits],
    "adapts": any(float(p.abs().sum()) for n, p in adapted.named_parameters() if "lora_B" in n),
}
"""
CARDLESS = """
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(name)
api.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=["README.md"])
info = api.model_info(name)
named = [m.id for m in api.list_models(filter="base_model:adapter:alice/tiny") if m.id == name]
result = {
    "files": sorted(file.rfilename for file in info.siblings),
    "base": info.card_data.base_model, "tags": info.tags, "by tag": named,
}
"""
PUSH = """
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(1)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
model.push_to_hub(name, max_shard_size="300KB", commit_message="A model")
tokenizer.push_to_hub(name)
again = AutoModelForCausalLM.from_pretrained(name)
same = all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
adapted = get_peft_model(again, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
# New ones begin with zeros, which would be the same whatever had come of them.
for key, parameter in adapted.named_parameters():
    if "lora_" in key:
        torch.nn.init.normal_(parameter)
adapted.push_to_hub(name + "-lora")
back = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(name), name + "-lora")
pushed, there = get_peft_model_state_dict(adapted), get_peft_model_state_dict(back)
adapter = pushed.keys() == there.keys() and all(torch.equal(pushed[k], there[k]) for k in pushed)
result = {"same": same, "adapter": adapter, "tensors": len(pushed)}
result["tokens"] = AutoTokenizer.from_pretrained(name)("def f(x)")["input_ids"]
"""


def test_models_and_tokenizers_load_by_name(newest: Machine, library: Library) -> None:
    models = library.models
    folders = {"alice/tiny": models.tiny, "alice/sharded": models.sharded}
    found = newest.run(LOAD, folders={name: str(path) for name, path in folders.items()})
    assert found["same"] == dict.fromkeys(folders, True)
    assert found["ids"] == [found["local ids"]]
    assert len(found["local ids"]) > 3
    assert found["type"] == "torch.bfloat16"
    assert found["config"] == "llama"
    assert found["old"] is not None
    assert "nope is not a valid git identifier" in found["revision"]["text"]
    assert "alice/nowhere is not a local folder" in found["missing"]["text"]


def test_an_adapter_loads_with_its_base(newest: Machine, library: Library) -> None:
    found = newest.run(ADAPTER, folder=library.models.lora)
    assert found == {"base": "alice/tiny", "same": [True, True, True], "adapts": True}


def test_an_adapter_without_a_card_has_its_base(
    newest: Machine, library: Library, name: str
) -> None:
    found = newest.run(CARDLESS, folder=library.models.lora, name=name)
    assert found["files"] == [".gitattributes", "adapter_config.json", "adapter_model.safetensors"]
    assert found["base"] == "alice/tiny"
    assert {"base_model:alice/tiny", "base_model:adapter:alice/tiny"} <= set(found["tags"])
    assert found["by tag"] == [name]


@pytest.mark.parametrize("uploader", ["newest", "newest-by-lfs"], indirect=True)
def test_a_model_and_an_adapter_are_pushed(
    uploader: Machine, library: Library, world: World, name: str
) -> None:
    found = uploader.run(PUSH, folder=library.models.tiny, name=name)
    assert found["same"]
    assert found["adapter"]
    assert found["tensors"] == 4  # A and B of two layers
    assert len(found["tokens"]) > 1
    there = world.hashes(name)
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= set(there)
    assert sum(path.endswith(".safetensors") for path in there) > 1
    adapter = world.hashes(f"{name}-lora")
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= set(adapter)
