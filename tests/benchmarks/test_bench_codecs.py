"""What the codec benchmark measures with, on small files made here."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.codecs import page
from benchmarks.codecs.figures import (
    Figure,
    Size,
    Sizes,
    Speed,
    fastest_by_level,
    memory_figures,
    size_figures,
    speed_figures,
)
from benchmarks.codecs.known_sizes import KnownSizes, version
from benchmarks.codecs.measure import measure
from benchmarks.codecs.ours import JUDGED, OURS, STANDALONE, Ours, verify
from benchmarks.codecs.picture import Point, draw
from benchmarks.codecs.tensors import PairOfFiles, Tensor
from benchmarks.codecs.threads import joined, threads_figures
from benchmarks.pairs.recipes import load_recipes
from benchmarks.rivals.all import BY_NAME
from deltahub.codecs import (
    BasePlan,
    BaseSegment,
    encode_frame,
    parse_header,
    split_frames,
    tensor_spec,
)

BASE = {"a": (64, 96), "same": (32, 32), "odd": (333,), "vocabulary": (40, 24)}
TUNED = {**BASE, "vocabulary": (48, 24), "new": (7,)}


def write(path: Path, dtype: str, shapes: dict[str, tuple[int, ...]], moves: float) -> None:
    """A file whose tensors are those of any other such file, moved a little."""
    header: dict[str, object] = {}
    parts: list[bytes] = []
    for name, shape in shapes.items():
        random = np.random.default_rng(len(name))
        values = (random.standard_normal(shape) * 0.02).astype(np.float32)
        if name != "same":
            values += (random.standard_normal(shape) * moves).astype(np.float32)
        if dtype == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            data = values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()
        begin = sum(map(len, parts))
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [begin, begin + len(data)],
        }
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


@pytest.fixture(params=["F32", "F16", "BF16"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "base.safetensors", tmp_path / "fine_tune.safetensors"
    write(paths[0], request.param, BASE, 0.0)
    write(paths[1], request.param, TUNED, 1e-4)
    return paths


def test_a_longer_vocabulary_has_the_base_for_its_old_rows(files: tuple[Path, Path]) -> None:
    tensors = {tensor.name: tensor for tensor in PairOfFiles.load(*files).tensors}
    known = {name: tensor.n_base for name, tensor in tensors.items()}
    assert known == {"a": 6144, "same": 1024, "odd": 333, "vocabulary": 960, "new": 0}
    assert not tensors["vocabulary"].base[960:].any()
    assert [name for name, tensor in tensors.items() if tensor.is_unchanged] == ["same"]


@pytest.mark.parametrize("codec", [*OURS, STANDALONE], ids=lambda codec: codec.name)
def test_ours_gives_every_tensor_back(codec: Ours, files: tuple[Path, Path]) -> None:
    pair = PairOfFiles.load(*files)
    for tensor in pair.tensors:
        verify(codec, tensor, codec.encode(tensor))
    assert 0 < codec.stored(pair).size_bytes < pair.file_bytes


class OnAnyBase(Ours):
    """Codes every tensor against its base, however far away that is."""

    def encode(
        self, tensor: Tensor, threads: int = 1, ids: tuple[bytes, bytes] = (b"\1" * 32, b"\2" * 32)
    ) -> list[bytes]:
        spec = tensor_spec(ids[0], tensor.dtype, tensor.shape)
        plan = BasePlan((BaseSegment(ids[1], spec.dtype, 0, spec.count),), is_cast=False)
        (part,) = split_frames(spec)
        source, base = tensor.words.tobytes(), tensor.base.tobytes()
        return [encode_frame(spec, part, source, base, plan, "fm_delta", threads)]


def test_a_tensor_may_exceed_its_standalone_form_by_its_header_alone(tmp_path: Path) -> None:
    """Neither by the tables before its blocks nor by the list of these."""
    files = tmp_path / "base.safetensors", tmp_path / "fine_tune.safetensors"
    write(files[0], "BF16", {"far": (64, 96)}, 0.0)
    write(files[1], "BF16", {"far": (64, 96)}, 0.1)
    pair = PairOfFiles.load(*files)
    (tensor,) = pair.tensors
    (frame,), (alone,) = OnAnyBase().encode(tensor), STANDALONE.encode(tensor)
    header = parse_header(frame)
    assert header.codec == "fm_delta"
    excess = len(frame) - len(alone) - header.header_length
    assert OnAnyBase().stored(pair).worst_excess == excess > header.prefix_length
    assert JUDGED.stored(pair).worst_excess == 0


def test_buffers_are_copies_of_what_changed(files: tuple[Path, Path]) -> None:
    pair = PairOfFiles.load(*files)
    buffers = pair.buffers(3 * pair.file_bytes)
    assert sum(tensor.words.nbytes for tensor in buffers) >= 3 * pair.file_bytes
    assert len({tensor.words.ctypes.data for tensor in buffers}) == len(buffers)
    assert {tensor.name for tensor in buffers} == set(TUNED) - {"same"}


def test_a_codec_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    files = tmp_path / "base.safetensors", tmp_path / "fine_tune.safetensors"
    write(files[0], "BF16", BASE, 0.0)
    write(files[1], "BF16", TUNED, 1e-4)
    options = {"repeats": 2, "buffer_bytes": 1 << 16}
    for codec in (JUDGED.name, "FM-Delta"):
        found = measure("speed", codec, files, **options)
        assert found["bytes"] >= 1 << 16
        assert len(found["encode_cpu_s"]) == len(found["decode_cpu_s"]) == 2
    size = measure("size", JUDGED.name, files)
    assert size["file_bytes"] == files[1].stat().st_size > size["stored_bytes"]
    assert size["worst_excess_bytes"] <= 0


def test_two_threads_are_held_against_one_at_the_same_work(tmp_path: Path) -> None:
    files = tmp_path / "base.safetensors", tmp_path / "fine_tune.safetensors"
    write(files[0], "BF16", BASE, 0.0)
    write(files[1], "BF16", TUNED, 1e-4)
    wall_s = measure("threads", JUDGED.name, files, repeats=1, buffer_bytes=1 << 16)["wall_s"]
    assert all(spent_s > 0 for spent_s in wall_s.values())
    doubled = {name: 2.0 if name.endswith(("one", "one, large frames")) else 1.0 for name in wall_s}
    encode, decode, large = threads_figures(doubled)
    assert (encode.found, decode.found, large.found) == (2, 2, 2)
    assert "two processes 4.00, blocks of a large frame 2.00" in encode.where
    (*_, missing) = threads_figures({})
    assert missing.verdict == "not measured"


def test_a_large_frame_is_of_the_commonest_row_length(files: tuple[Path, Path]) -> None:
    buffers = PairOfFiles.load(*files).buffers(1 << 16)
    large = joined(buffers)
    assert large.shape[1] == 96
    same = [tensor for tensor in buffers if tensor.shape[1:] == (96,)]
    assert np.array_equal(large.words, np.concatenate([tensor.words for tensor in same]))
    assert np.array_equal(large.base, np.concatenate([tensor.base for tensor in same]))


def test_memory_is_that_of_the_first_frame_that_is_coded(tmp_path: Path) -> None:
    """Whatever is kept for the next one counts, so that it is never nothing."""
    files = tmp_path / "base.safetensors", tmp_path / "fine_tune.safetensors"
    for path, moves in zip(files, (0.0, 1e-4), strict=True):
        write(path, "BF16", {"large": (1024, 2048)}, moves)
    memory = {codec.name: measure("memory", codec.name, files) for codec in (OURS[0], JUDGED)}
    fast, default = memory.values()
    assert fast["tensor_bytes"] == default["tensor_bytes"] == 4 << 20
    assert 1 << 15 < fast["decode_bytes"] < 4 << 20
    assert 1 << 16 < fast["encode_bytes"] < default["encode_bytes"] < 16 << 20
    figures = memory_figures(memory)
    assert {figure.verdict for figure in figures} == {"pass"}
    fast["encode_bytes"] = default["encode_bytes"] = 9 << 20
    assert [figure.verdict for figure in memory_figures(memory)] == [*["pass"] * 2, "fail", "pass"]
    assert {figure.verdict for figure in memory_figures({})} == {"not measured"}


def test_figures_are_passed_failed_or_not_measured() -> None:
    recipes = load_recipes()
    good, bad = recipes.pairs["llama-full-1e-5-wd0"], recipes.pairs["llama-full-1e-4-wd0"]
    sizes = Sizes(
        [
            Size(good, "BF16", JUDGED.name, 1000, 100),
            Size(good, "BF16", "FM-Delta", 1000, 200),
            Size(good, "BF16", "TensorX", 1000, 150),
            Size(bad, "BF16", JUDGED.name, 1000, 300),
            Size(bad, "BF16", "FM-Delta", 1000, 310),
        ]
    )
    every, mean, f16, *_ = size_figures(sizes, {})
    assert (every.verdict, every.where) == ("fail", bad.name)
    assert mean.found == pytest.approx((100 / 3 + 100 / 31) / 2)
    assert f16.verdict == "not measured"
    speed = Speed(good, "BF16", OURS[0].name, "avx2", "decode", 1300.0, 1200.0, 1400.0)
    by_name = {figure.name: figure for figure in speed_figures([speed], ["portable", "avx2"])}
    assert by_name["BF16: decode, without prediction, avx2"].verdict == "pass"
    missing = by_name["BF16: decode, without prediction, avx512 (this processor has none)"]
    assert missing.verdict == "not measured"
    assert Figure("", 2, 2.5, False, "times").verdict == "fail"


@pytest.mark.parametrize("fastest", ["avx512", "avx512_gathers"])
def test_a_figure_speaks_of_the_fastest_kernels_of_its_level(fastest: str) -> None:
    (slower,) = {"avx512", "avx512_gathers"} - {fastest}
    names = ["portable", "avx2", slower, fastest]
    assert fastest_by_level(names)["avx512"] == fastest
    pair = load_recipes().pairs["llama-full-1e-5-wd0"]
    speeds = [
        Speed(pair, "BF16", OURS[0].name, kernels, "decode", found, found, found)
        for kernels, found in ((fastest, 2600.0), (slower, 2700.0))
    ]
    by_name = {figure.name: figure for figure in speed_figures(speeds, names)}
    assert by_name["BF16: decode, without prediction, avx512"].found == 2600


def test_a_run_rewrites_its_sections_of_the_page_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = load_recipes().pairs["llama-full-1e-5-wd0"]
    sizes = Sizes([Size(pair, "BF16", name, 1000, 100) for name in (JUDGED.name, "FM-Delta")])
    speeds = [
        Speed(pair, "BF16", JUDGED.name, kernels, "decode", speed, speed, speed)
        for kernels, speed in (("portable", 300.0), ("avx2", 1300.0))
    ]
    speeds.append(Speed(pair, "BF16", "FM-Delta", "", "decode", 115.0, 110.0, 120.0))
    before, between, after = (
        "# Page\n<!-- codecs, sizes: begin -->\n",
        "<!-- codecs, sizes: end -->\nmore\n<!-- codecs, speeds: begin -->\n",
        "<!-- codecs, speeds: end -->\nrest\n",
    )
    document = tmp_path / "benchmarks.md"
    document.write_text(f"{before}old | sizes\n{between}old | speeds\n{after}")
    monkeypatch.setattr(page, "_PAGE", document)
    monkeypatch.setattr(page, "_PICTURE", tmp_path / "benchmarks.svg")
    figures = [Figure("a promise", 15, 20.0, True, "%", pair.name)]
    page.write_speeds(sizes, speeds, figures, [Path("results/2026-a.csv")], "make all")
    text = document.read_text()
    assert text.startswith(f"{before}old | sizes\n{between}Made by `make all` on ")
    assert text.endswith(after)
    assert "old | speeds" not in text
    assert "| a promise | >= 15 | 20.00 | % | llama-full-1e-5-wd0 | pass |" in text
    assert "(../benchmarks/results/2026-a.csv)" in text
    assert (tmp_path / "benchmarks.svg").read_text().count("<circle") == 2
    page.write_sizes(sizes, figures, [Path("results/2026-b.csv")], "make sizes")
    again = document.read_text()
    assert "old | sizes" not in again
    assert "(../benchmarks/results/2026-b.csv)" in again
    assert again.partition(between)[2] == text.partition(between)[2]
    columns = page.csv_rows(sizes, speeds, ["BF16"])
    assert [row["kernels"] for row in columns] == ["avx2", "portable", ""]


def test_the_picture_is_xml_with_a_point_for_every_codec() -> None:
    points = [Point("deltahub <fast>", 10.6, 1500, True), Point("zstd-3", 78.2, 500, False)]
    root = ElementTree.fromstring(draw(points, "a pair & its rivals"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}circle")) == 2
    texts = [text.text for text in root.iter(f"{space}text")]
    assert "deltahub <fast> (10.6 %)" in texts


def test_what_an_earlier_run_found_is_known_until_the_code_changes(tmp_path: Path) -> None:
    path = tmp_path / "sizes.json"
    KnownSizes(path).put("a pair", {"stored_bytes": 7})
    assert KnownSizes(path).get("a pair") == {"stored_bytes": 7}
    assert KnownSizes(path).get("another") is None
    # Efforts share their code; a rival's is its package.
    assert version(JUDGED) == version(STANDALONE)
    assert len({version(JUDGED), *(version(BY_NAME[name]) for name in ("zstd-3", "FM-Delta"))}) == 3
