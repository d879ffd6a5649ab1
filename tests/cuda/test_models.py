"""Models with compressed weights on a card: the numbers of the plain model, and damage by name.

The kernels run on this CPU, in whatever order two streams may have.
"""

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from benchmarks.gpu.models import contenders, measure_model
from benchmarks.gpu.run import show_models
from deltahub.codecs.cuda.cupy_device import VERIFY
from deltahub.codecs.errors import CorruptFrame, NoGpu
from deltahub.codecs.exports.file import FILE_NAME, map_export
from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.cards import CudaCard, card_for
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import compress_, load_folder, resident_bytes
from deltahub.methods.inference.modules import CompressedModule
from support.cuda.cards import EmulatedCard, place
from support.models.exported import batch, train, trained_llama, write_export

either_order = pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])


@pytest.fixture(scope="module")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(trained_llama(), tmp_path_factory.mktemp("lossless"))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(batch(3)).logits
    return found


@either_order
@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("tied", [False, True])
def test_a_lossless_export_computes_the_same(
    tmp_path: Path, tied: bool, prefetch: bool, is_late: bool
) -> None:
    plain, card = trained_llama(tied=tied), EmulatedCard(is_late=is_late)
    model = place(load_folder(write_export(plain, tmp_path), prefetch=prefetch), card)
    sources = {id(each.source) for each in compressed_modules(model)}
    for is_first in (True, False, False):  # the second pass knows the order of the layers
        card.decoder.launches.clear()
        assert torch.equal(logits(model), logits(plain))
        kernels = [launch.kernel for launch in card.decoder.launches]
        assert len(kernels) >= len(sources)
        # A weight is compared with its checksums once.
        assert (VERIFY in kernels) == is_first
    assert resident_bytes(model) < 0.9 * resident_bytes(plain) + 3000 * len(sources)


def compressed_modules(model: nn.Module) -> list[CompressedModule]:
    return [each for each in model.modules() if isinstance(each, CompressedModule)]


@pytest.mark.parametrize("bits", [None, 1, 0])
@pytest.mark.parametrize("block", [0, 64])
def test_a_rounded_export_has_the_weights_of_the_cpu(
    tmp_path: Path, bits: int | None, block: int
) -> None:
    folder = write_export(trained_llama(), tmp_path, bits=3, also=(0, 1), block=block)
    on_cpu = load_folder(folder, bits=bits)
    model = place(load_folder(folder, bits=bits), EmulatedCard(is_late=True))
    state, expected = model.state_dict(), on_cpu.state_dict()
    assert all(torch.equal(state[name], each) for name, each in expected.items())
    assert torch.equal(logits(model), logits(on_cpu))


def test_generation_of_tokens(lossless: Path) -> None:
    arguments: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    model = place(load_folder(lossless), EmulatedCard(is_late=True))
    found = model.generate(batch()[:2], **arguments)
    assert torch.equal(found, trained_llama().generate(batch()[:2], **arguments))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_trains_with_the_same_losses(lossless: Path, checkpointing: bool) -> None:
    losses = []
    on_card = place(load_folder(lossless), EmulatedCard(is_late=True))
    for model in (load_folder(lossless), on_card):
        for each in model.parameters():
            each.requires_grad_(False)
        if checkpointing:
            model.enable_input_require_grads()  # type: ignore[operator]
            model.activation_checkpointing_enable()  # type: ignore[operator]
        torch.manual_seed(9)
        tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
        losses.append(train(tuned, steps=3))
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


@either_order
def test_a_family_is_switched(tmp_path: Path, is_late: bool) -> None:
    plain: dict[str, Any] = {}
    for name, start in (("base", None), ("tuned", 2000), ("same", None)):
        plain[name] = trained_llama()
        if start is not None:
            train(plain[name], steps=4, rate=1e-5, start=start)
        plain[name].save_pretrained(tmp_path / name)
    family = Family(tmp_path / "base", {name: tmp_path / name for name in ("tuned", "same")})
    place(family.model, EmulatedCard(is_late=is_late))
    for name in ("base", "tuned", "same", "tuned", "base"):
        for _ in range(2):
            assert torch.equal(logits(family.use(name)), logits(plain[name]))
    assert not torch.equal(logits(plain["base"]), logits(plain["tuned"]))


def test_a_damaged_weight_is_named_at_the_end_of_a_pass(tmp_path: Path) -> None:
    path = write_export(trained_llama(), tmp_path, bits=3, also=(1,)) / FILE_NAME
    name = "model.layers.1.mlp.up_proj.weight"
    parts = map_export(path).weights[name].slices[0]
    words, plane = (bytes(parts[part].body[-60:]) for part in ("words", "m3"))
    good = path.read_bytes()
    # A stream whose guard matches, of other bytes: the checksum of a raw block, or the decoded one.
    for payload in (words, plane):
        data = bytearray(good)
        data[data.index(payload) + 30] ^= 4
        path.write_bytes(data)
        with pytest.raises(CorruptFrame, match=r"^model\.layers\.1\.mlp\.up_proj\.weight: .*again"):
            place(load_folder(tmp_path), EmulatedCard())(batch())


@either_order
def test_damage_in_the_memory_of_the_card_is_told_by_every_pass(
    lossless: Path, is_late: bool
) -> None:
    card = EmulatedCard(is_late=is_late)
    model = place(load_folder(lossless), card)
    damaged = model.model.layers[1].mlp.up_proj
    stored = damaged.source._resident._frames._memory.owner
    stored[len(stored) // 2] ^= 4
    for _ in range(3):
        with pytest.raises(CorruptFrame, match=r"^model\.layers\.1\.mlp\.up_proj\.weight: "):
            model(batch())
    stored[len(stored) // 2] ^= 4
    assert torch.equal(logits(model), logits(trained_llama()))


def test_a_model_goes_to_a_card_and_back(lossless: Path) -> None:
    model, card, plain = load_folder(lossless), EmulatedCard(), logits(trained_llama())
    assert torch.equal(logits(model), plain)
    other = place(copy.deepcopy(model), card)
    before = len(card.decoder.launches)
    assert torch.equal(logits(model), plain)  # the copy moved alone
    assert len(card.decoder.launches) == before
    assert torch.equal(logits(other), plain)
    after = len(card.decoder.launches)
    assert after > before
    on_card = [weakref.ref(each.source) for each in compressed_modules(other)]
    for each in compressed_modules(other):
        each.place(None)
    assert [ref for ref in on_card if ref() is not None] == []
    assert torch.equal(logits(other), plain)
    assert len(card.decoder.launches) == after
    place(other.float(), card)
    assert torch.equal(logits(other), logits(trained_llama().float()))


def test_another_stream_waits_for_the_one_before(lossless: Path) -> None:
    card, waited = EmulatedCard(), []
    model = place(load_folder(lossless), card)
    logits(model)
    wait = card.wait
    card.wait = lambda stream, earlier: (waited.append((stream, earlier)), wait(stream, earlier))[1]  # type: ignore[method-assign]
    first, card.stream = card.stream, "another stream"
    card.decoder.may_begin = True
    logits(model)
    assert waited[0] == ("another stream", first)


def test_memory_stays_until_the_second_stream_has_done_its_work(lossless: Path) -> None:
    card = EmulatedCard(is_late=True)
    model = place(load_folder(lossless), card)
    for _ in range(2):
        logits(model)
    assert card.decoder.queued  # the first layer of the next pass
    del model
    gc.collect()  # modules of transformers refer to each other
    assert not card.decoder.queued


def test_threads_take_turns(lossless: Path) -> None:
    model, expected = place(load_folder(lossless), EmulatedCard()), logits(trained_llama())
    found: list[torch.Tensor] = []
    threads = [Thread(target=lambda: found.append(logits(model))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(torch.equal(each, expected) for each in found)


def test_modules_that_share_a_weight_share_it_on_the_card() -> None:
    torch.manual_seed(1)
    one = nn.Linear(80, 80, bias=False)
    two = nn.Linear(80, 80, bias=False)
    two.weight = one.weight
    model = place(compress_(nn.Sequential(one, two), lossless=True), EmulatedCard())
    assert model[0].source is model[1].source
    source = model[0].source
    assert resident_bytes(model) == source.size_bytes


def test_without_a_gpu_the_error_says_what_to_install(lossless: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    message = r'torch finds no GPU: .* pip install "\.\[gpu\]"'
    with pytest.raises(NoGpu, match=message):
        load_folder(lossless, device="cuda:0")
    with pytest.raises(NoGpu, match=message):
        Family(tmp_path, {}, device="cuda")


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(NoGpu, match=r'needs CuPy.*pip install "\.\[gpu\]"'):
        CudaCard(0)


def test_devices_of_other_kinds_are_refused() -> None:
    with pytest.raises(CannotExport, match="on GPUs of CUDA, not on mps"):
        card_for(torch.device("mps"))


def test_the_benchmark_measures_models_of_each_kind_and_prints_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = trained_llama()

    def one_second(work: Callable[[], object]) -> float:
        work()
        return 1.0

    speeds = [
        measure_model(
            name, place(model, EmulatedCard()), one_second, repeats=1, n_new=1, n_prompt=8
        )
        for name, model in contenders(plain, 1)
    ]
    show_models(speeds)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(speeds)
    weights = {speed.model: speed.weights_bytes for speed in speeds}
    assert weights["3 bits"] < weights["lossless"] < weights["plain BF16"]
