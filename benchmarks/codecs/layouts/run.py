"""What a fine-tune costs in other layouts than its base: `python -m benchmarks.codecs.layouts.run`

Bases and codings are chosen as a push chooses them; every frame is decoded and compared. Sizes are
packs and recipe.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from safetensors.torch import save_file

from benchmarks.codecs.layouts import forms
from benchmarks.codecs.layouts.model import Tensors, train_models
from benchmarks.codecs.model_file import ModelFile
from benchmarks.codecs.ours import PACKAGES, NotLossless, Packs
from benchmarks.codecs.page import write_section
from benchmarks.results_file import print_columns, write_results
from deltahub.client.local.index import LocalIndex
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.push.base import BaseSet
from deltahub.client.push.encode import LocalTensor, choose, encode_all
from deltahub.codecs import assemble, make_recipe, open_frame, tensor_id
from deltahub.codecs.dtypes import DType
from deltahub.codecs.frames.base_choice import BaseTensor
from deltahub.codecs.frames.layouts.search import LayoutSearch

MODELS: Final = Path(".cache/layouts")
TITLES: Final = [
    "base",
    "fine-tune",
    "bytes",
    "% of the file",
    "x the same layout",
    "wanted",
    "x by names alone",
]


@dataclass(frozen=True)
class Case:
    """A base in one layout, and a fine-tune in another. most: of what the same layout costs."""

    about: str
    base: Callable[[Tensors], Tensors]
    tune: Callable[[Tensors], Tensors]
    most: float


CASES: Final = (
    Case("fused", forms.same, forms.fused, 1.2),
    Case("stacked", forms.same, forms.stacked, 1.2),
    Case("transposed", forms.same, forms.transposed, 1.3),
    Case("stacked and transposed", forms.same, forms.stacked_transposed, 1.3),
    Case("FP8, a scale a tensor", forms.same, forms.fp8_tensors, 2.0),
    Case("FP8, a scale a row", forms.same, forms.fp8_rows, 2.0),
    Case("FP8, a scale a block", forms.same, forms.fp8_blocks, 2.0),
    Case("split", forms.fused, forms.same, 1.2),
    Case("split", forms.stacked, forms.same, 1.2),
    Case("split", forms.transposed, forms.same, 1.3),
)


def stored_bytes(base: Path, tune: Path, *, by_names: bool = False) -> int:
    """Bytes of packs and recipe that a push of `tune` with this base needs. Round trips held.

    by_names: only tensors of the same name and row length are bases, and no other layouts.
    """
    with TemporaryDirectory() as folder:
        index = LocalIndex(Path(folder) / "index.sqlite")
        sources = Sources(index)
        try:
            return _stored_bytes(base, tune, sources, by_names)
        finally:
            sources.close()
            index.close()


def _stored_bytes(base: Path, tune: Path, sources: Sources, by_names: bool) -> int:
    known: list[BaseTensor] = []
    file = ModelFile.load(base)
    for piece in file.pieces:
        if piece.name is not None:
            tensor = tensor_id(file.bytes_of(piece))
            sources.add(tensor, base, piece.start, piece.size)
            if piece.dtype in DType.__members__:
                known.append(BaseTensor(piece.name, piece.dtype, piece.shape, tensor))
    bases = BaseSet(known, sources.read)
    if by_names:
        bases.layouts = LayoutSearch((), sources.read)
    file = ModelFile.load(tune)
    pieces = file.plan.tensor_pieces()
    ids = [tensor_id(file.bytes_of(piece)) for piece in pieces]
    missing = [
        LocalTensor(tensor, tune, piece)
        for tensor, piece in dict(zip(ids, pieces, strict=True)).items()
        if tensor not in sources
    ]
    choices = [choose(tensor, [bases], sources) for tensor in missing]
    packs = Packs()
    for frame in encode_all(choices, sources):
        _verify(frame.data, file.bytes_of(frame.choice.tensor.piece), sources)
        packs.add(frame.data)
    digest = sha256(file.data).digest()
    recipe = make_recipe(file.plan, digest, ids, lambda at, n: file.data[at : at + n])
    return packs.finish() + len(recipe.to_bytes())


def _verify(frame: bytes, tensor: bytes, sources: Sources) -> None:
    view, body = open_frame(frame)
    header = view.header
    base = None
    if header.base is not None:
        base = bytearray(header.base_bytes(header.size_bytes))
        assemble(header.base, header.dtype, 0, header.count, sources.read, memoryview(base))
    out = bytearray(header.size_bytes)
    view.decode_into(0, header.n_blocks, body, base, memoryview(out))
    if out != tensor[header.start_byte : header.start_byte + header.size_bytes]:
        raise NotLossless("a frame does not decode to its tensor")


def run(models: Path = MODELS, *, is_written: bool = True) -> bool:
    """Measures all cases, and writes the table and a CSV file; whether all figures are reached."""
    trained = train_models(models)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:

        def bytes_of(
            base: Callable[[Tensors], Tensors], tune: Callable[[Tensors], Tensors]
        ) -> tuple[int, int, int]:
            paths = Path(folder) / "base.safetensors", Path(folder) / "tune.safetensors"
            for path, form, tensors in zip(paths, (base, tune), trained, strict=True):
                save_file(form(tensors), path)
            plain = stored_bytes(*paths, by_names=True)
            return stored_bytes(*paths), plain, paths[1].stat().st_size

        sizes = bytes_of(forms.same, forms.same)
        same_layout = sizes[0]
        rows.append(_row("split", "split", sizes, same_layout, None))
        for case in CASES:
            of_base = "split" if case.base is forms.same else case.base.__name__
            sizes = bytes_of(case.base, case.tune)
            rows.append(_row(of_base, case.about, sizes, same_layout, case.most))
    table = [[str(row[title]) for title in TITLES] for row in rows]
    print_columns(TITLES, table)
    if is_written:
        notes = ["x the same layout: bytes, over those of the first row"]
        source = write_results("layouts", rows, [*PACKAGES, "torch", "transformers"], notes)
        write_section("layouts", TITLES, table, [source], "python -m benchmarks.codecs.layouts.run")
    return all(row["wanted"] == "" or row[TITLES[4]] <= float(row["wanted"][3:]) for row in rows)


def _row(
    base: str, tune: str, sizes: tuple[int, int, int], same_layout: int, most: float | None
) -> dict[str, Any]:
    """sizes: bytes stored, the same by names alone, bytes of the file."""
    stored, by_names, size = sizes
    numbers = stored, round(100 * stored / size, 2), round(stored / same_layout, 2)
    wanted = "" if most is None else f"<= {most:g}"
    alone = round(by_names / same_layout, 2)
    return dict(zip(TITLES, (base, tune, *numbers, wanted, alone), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    chosen = parser.parse_args(arguments)
    raise SystemExit(0 if run(chosen.models, is_written=not chosen.dry_run) else 1)


if __name__ == "__main__":
    main()
