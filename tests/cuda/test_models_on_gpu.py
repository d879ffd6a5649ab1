"""Models with compressed weights on a GPU: the numbers, the losses and the memory of torch."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from deltahub.codecs.cuda.cupy_device import CupyDevice
from deltahub.codecs.errors import CorruptFrame, NoGpu
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import compress_, load_folder, resident_bytes
from deltahub.methods.inference.modules import CompressedModule
from support.models.exported import batch, train, trained_llama, write_export

pytestmark = pytest.mark.gpu
GPU = "cuda:0"
LAYERS, WIDTH = 24, 1536
LAYER_BYTES = 2 * WIDTH * WIDTH


@pytest.fixture(scope="module", autouse=True)
def _gpu() -> None:
    try:
        CupyDevice()
    except NoGpu as exc:
        pytest.skip(str(exc))
    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")


@pytest.fixture(scope="module")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(trained_llama(), tmp_path_factory.mktemp("lossless"))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(batch(3).to(GPU)).logits
    return found


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_lossless_export_computes_the_same(
    tmp_path: Path, dtype: torch.dtype, prefetch: bool
) -> None:
    plain = trained_llama(dtype=dtype)
    folder = write_export(plain, tmp_path, lossless=True)
    model = load_folder(folder, device=GPU, prefetch=prefetch)
    plain.to(GPU)
    for _ in range(20):
        assert torch.equal(logits(model), logits(plain))
    arguments: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False}
    found = model.generate(batch()[:2].to(GPU), **arguments)  # type: ignore[operator]
    assert torch.equal(found, plain.generate(batch()[:2].to(GPU), **arguments))


@pytest.mark.parametrize("bits", [None, 1, 0])
@pytest.mark.parametrize("block", [0, 64])
def test_a_rounded_export_has_the_weights_of_the_cpu(
    tmp_path: Path, bits: int | None, block: int
) -> None:
    folder = write_export(trained_llama(), tmp_path, bits=3, also=(0, 1), block=block)
    expected = load_folder(folder, bits=bits).state_dict()
    state = load_folder(folder, bits=bits, device=GPU).state_dict()
    assert all(torch.equal(state[name].cpu(), each) for name, each in expected.items())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_trains_with_the_same_losses(lossless: Path, checkpointing: bool) -> None:
    losses = []
    for model in (trained_llama().to(GPU), load_folder(lossless, device=GPU)):
        for each in model.parameters():
            each.requires_grad_(False)
        if checkpointing:
            model.enable_input_require_grads()
            model.activation_checkpointing_enable()
        torch.manual_seed(9)
        tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
        losses.append(train_on_gpu(tuned, steps=6))
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def train_on_gpu(model: Any, steps: int) -> list[float]:
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    model.train()
    losses = []
    for step in range(steps):
        ids = batch(step * 37).to(GPU)
        loss = model(input_ids=ids, labels=ids).loss
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_a_family_is_switched(tmp_path: Path) -> None:
    plain: dict[str, Any] = {}
    for name, start in (("base", None), ("tuned", 2000)):
        plain[name] = trained_llama()
        if start is not None:
            train(plain[name], steps=4, rate=1e-5, start=start)
        plain[name].save_pretrained(tmp_path / name)
        plain[name].to(GPU)
    family = Family(tmp_path / "base", {"tuned": tmp_path / "tuned"}, device=GPU)
    for name in ("base", "tuned", "tuned", "base"):
        for _ in range(3):
            assert torch.equal(logits(family.use(name)), logits(plain[name]))


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    made = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
    return nn.Sequential(*made).bfloat16().requires_grad_(False)


def test_a_pass_takes_two_layers_beside_the_compressed_weights() -> None:
    plain = layers()
    model = compress_(copy.deepcopy(plain), bits=3).to(GPU)
    inputs = torch.ones(4, WIDTH, dtype=torch.bfloat16, device=GPU)
    nn.functional.linear(inputs, inputs)  # what matrix products keep for themselves
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        for _ in range(3):
            model(inputs)
    # The compressed bytes are not torch's; CuPy's pool has them.
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 2 * LAYER_BYTES + (1 << 20)
    assert resident_bytes(model) < 0.45 * LAYERS * LAYER_BYTES


def test_passes_on_several_streams_do_not_disturb_each_other() -> None:
    plain = layers().to(GPU)
    model = compress_(copy.deepcopy(plain), lossless=True)  # on the GPU
    inputs = torch.ones(4, WIDTH, dtype=torch.bfloat16, device=GPU)
    with torch.no_grad():
        expected = plain(inputs)
        model(inputs)
        streams: list[Any] = [torch.cuda.Stream() for _ in range(3)]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        found = []
        for i in range(12):
            with torch.cuda.stream(streams[i % 3]):
                found.append(model(inputs))
        torch.cuda.synchronize()
    assert all(torch.equal(each, expected) for each in found)


def test_damage_is_named_at_the_end_of_a_pass() -> None:
    model = compress_(layers().to(GPU), lossless=True)
    damaged: Any = model[5]
    assert isinstance(damaged, CompressedModule)
    memory = damaged.source._resident._frames._memory
    (memory.owner + memory.size // 2).memset(0x5A, 16)  # of a stream
    with pytest.raises(CorruptFrame, match=r"^5\.weight: "), torch.no_grad():
        model(torch.ones(4, WIDTH, dtype=torch.bfloat16, device=GPU))


def test_a_model_goes_to_the_gpu_and_back(lossless: Path) -> None:
    expected = trained_llama()(batch()).logits
    model = load_folder(lossless).to(GPU)
    assert model(batch().to(GPU)).logits.device.type == "cuda"
    model.to("cpu")
    assert torch.equal(model(batch()).logits, expected)
