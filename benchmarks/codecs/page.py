"""What a run says: tables for people, rows for the CSV, the sections of docs/benchmarks.md."""

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.codecs.figures import DECODE, ENCODE, Figure, Sizes, Speed
from benchmarks.codecs.ours import JUDGED, OURS, STANDALONE
from benchmarks.codecs.picture import Point, draw
from benchmarks.results_file import processor
from benchmarks.rivals.all import RIVALS

DOCS = Path(__file__).resolve().parents[2] / "docs"
_PAGE, _PICTURE = DOCS / "benchmarks.md", DOCS / "benchmarks.svg"
_OURS = tuple(codec.name for codec in OURS)
CODECS = (*_OURS, STANDALONE.name, *(rival.name for rival in RIVALS))


def speed_of(speeds: Sequence[Speed], pair: str, dtype: str, codec: str, way: str) -> Speed | None:
    """The one with the fastest kernels, which is how a user runs it."""
    found = [
        s for s in speeds if (s.pair.name, s.dtype, s.codec, s.way) == (pair, dtype, codec, way)
    ]
    return max(found, key=lambda s: s.mb_per_s, default=None)


def size_rows(sizes: Sizes, dtypes: Sequence[str]) -> list[list[str]]:
    """One row a pair and dtype: the size in % by each codec."""
    rows = []
    for pair in sizes.pairs:
        for dtype in dtypes:
            cells = [sizes.get(pair, dtype, codec) for codec in CODECS]
            if any(cells):
                saving = sizes.saving(pair, dtype)
                rows.append(
                    [f"{pair.name} {dtype}"]
                    + [f"{cell.percent:.2f}" if cell else "-" for cell in cells]
                    + ["-" if saving is None else f"{saving:.1f}"]
                )
    return rows


SIZE_TITLES = ["pair", *CODECS, "saved %"]


def speed_rows(speeds: Sequence[Speed]) -> list[list[str]]:
    return [
        [
            f"{s.pair.name} {s.dtype}",
            s.codec,
            s.kernels or "-",
            s.way,
            f"{s.mb_per_s:.0f}",
            f"{s.slowest:.0f}-{s.fastest:.0f}",
        ]
        for s in speeds
    ]


SPEED_TITLES = ["pair", "codec", "kernels", "way", "MB/s", "spread"]
FIGURE_TITLES = ["figure", "wanted", "found", "unit", "where", "verdict"]


def figure_rows(figures: Sequence[Figure]) -> list[list[str]]:
    return [
        [
            f.name,
            f"{'>=' if f.is_at_least else '<='} {f.wanted:g}",
            "-" if f.found is None else f"{f.found:.2f}",
            f.unit,
            f.where,
            f.verdict,
        ]
        for f in figures
    ]


def write_sizes(
    sizes: Sizes, figures: Sequence[Figure], sources: Sequence[Path], command: str
) -> None:
    """Writes the section of sizes."""
    lines = [*_table(SIZE_TITLES, size_rows(sizes, DTYPES)), ""]
    lines += [f"saved %: by how much `{JUDGED.name}` is smaller than the smallest rival.", ""]
    _write("sizes", lines, figures, sources, command)


def write_speeds(
    sizes: Sizes,
    speeds: Sequence[Speed],
    figures: Sequence[Figure],
    sources: Sequence[Path],
    command: str,
) -> None:
    """Writes the section of speeds, and the picture beside the page."""
    lines = [*_table(SPEED_TITLES, speed_rows(speeds)), ""]
    shown = _shown_pair(speeds)
    if shown is not None:
        pair, dtype = shown
        points = _points(sizes, speeds, pair, dtype)
        _PICTURE.write_text(draw(points, f"{pair}, {dtype}"))
        picture = f"![Size against decode speed of every codec on {pair}]({_PICTURE.name})"
        lines = [picture, "", *lines]
    _write("speeds", lines, figures, sources, command)


def _write(
    section: str,
    lines: Sequence[str],
    figures: Sequence[Figure],
    sources: Sequence[Path],
    command: str,
) -> None:
    """Writes a section that ends with figures."""
    promised = ["Promised:", "", *_table(FIGURE_TITLES, figure_rows(figures)), ""]
    _write_between_marks(section, [*lines, *promised], sources, command)


def write_section(
    section: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    sources: Sequence[Path],
    command: str,
) -> None:
    """Writes a section of one table."""
    _write_between_marks(section, [*_table(titles, rows), ""], sources, command)


def _write_between_marks(
    section: str, lines: Sequence[str], sources: Sequence[Path], command: str
) -> None:
    """Writes what lies between the two marks of a section of the page."""
    files = ", ".join(f"[CSV](../benchmarks/results/{path.name})" for path in sources)
    whole = [f"Made by `{command}` on {processor()}; sources: {files}.", "", *lines]
    marks = rf"(<!-- codecs, {section}: begin -->\n).*(<!-- codecs, {section}: end -->)"
    text = "\n".join(whole)
    written, n = re.subn(
        marks, lambda found: found[1] + text + found[2], _PAGE.read_text(), flags=re.DOTALL
    )
    if n != 1:
        raise LookupError(f"{_PAGE.name} has no two marks `codecs, {section}`")
    _PAGE.write_text(written)


DTYPES = ("F32", "F16", "BF16")


def _shown_pair(speeds: Sequence[Speed]) -> tuple[str, str] | None:
    """The first timed BF16 pair that the rivals were timed on, too."""
    rivals = {rival.name for rival in RIVALS}
    for speed in speeds:
        if speed.dtype == "BF16" and speed.codec in rivals:
            return speed.pair.name, speed.dtype
    return None


def _points(sizes: Sizes, speeds: Sequence[Speed], pair: str, dtype: str) -> list[Point]:
    named = next(p for p in sizes.pairs if p.name == pair)
    points = []
    for codec in CODECS:
        size = sizes.get(named, dtype, codec)
        speed = speed_of(speeds, pair, dtype, codec, DECODE)
        if size is not None and speed is not None:
            is_ours = codec in (*_OURS, STANDALONE.name)
            points.append(Point(codec, size.percent, speed.mb_per_s, is_ours))
    return points


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def csv_rows(
    sizes: Sizes, speeds: Sequence[Speed], dtypes: Sequence[str]
) -> list[dict[str, object]]:
    """One row a pair, dtype, codec and kernels: sizes and both speeds with their spread."""
    rows: list[dict[str, object]] = []
    for pair in sizes.pairs:
        for dtype in dtypes:
            for codec in CODECS:
                size = sizes.get(pair, dtype, codec)
                timed = [
                    s
                    for s in speeds
                    if (s.pair.name, s.dtype, s.codec) == (pair.name, dtype, codec)
                ]
                for kernels in sorted({s.kernels for s in timed}) or [""]:
                    if size is None and not timed:
                        continue
                    row: dict[str, object] = {
                        "pair": pair.name,
                        "dtype": dtype,
                        "codec": codec,
                        "kernels": kernels,
                        "file_bytes": size.file_bytes if size else "",
                        "stored_bytes": size.stored_bytes if size else "",
                        "size_percent": f"{size.percent:.3f}" if size else "",
                    }
                    for way in (ENCODE, DECODE):
                        found = next(
                            (s for s in timed if (s.kernels, s.way) == (kernels, way)), None
                        )
                        row[f"{way}_mb_per_s"] = f"{found.mb_per_s:.0f}" if found else ""
                        row[f"{way}_slowest"] = f"{found.slowest:.0f}" if found else ""
                        row[f"{way}_fastest"] = f"{found.fastest:.0f}" if found else ""
                    rows.append(row)
    return rows
