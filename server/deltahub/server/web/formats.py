"""How pages write numbers, times and names."""

import re
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_AGES: Final = (
    (60, 1, "second"),
    (3600, 60, "minute"),
    (86400, 3600, "hour"),
    (30 * 86400, 86400, "day"),
    (365 * 86400, 30 * 86400, "month"),
)
# In order: browsers and systems also name those that they descend from.
_BROWSERS: Final = (
    ("Edg", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"), ("FxiOS/", "Firefox"), ("Safari/", "Safari"),
)  # fmt: skip
_SYSTEMS: Final = (
    ("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"),
    ("Mac OS X", "macOS"), ("CrOS", "ChromeOS"), ("Linux", "Linux"),
)  # fmt: skip
_YEAR_S: Final = 365 * 86400
# A first word that no capital may change: `lab/digits has no kit`, `trans_lora: not possible`.
_NAME: Final = re.compile(r"[a-z0-9]\S*[/@_]")


def size(n_bytes: float | None) -> str:
    """Return bytes in a unit of 1000: 1.5 GB. An en dash where it is not known."""
    if n_bytes is None:
        return "–"  # noqa: RUF001
    value = float(n_bytes)
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    text = f"{value:.0f}" if unit == "B" or abs(value) >= 99.5 else f"{value:.3g}"
    return f"{text} {unit}"


def exact_bytes(n_bytes: int) -> str:
    """Return bytes to the last one, as a title beside size()."""
    return f"{n_bytes:,} bytes"


def number(n: float | None) -> str:
    """Return a count with separators."""
    return "–" if n is None else f"{n:,.0f}"  # noqa: RUF001


def short_number(n: float | None) -> str:
    """Return a count in three digits: 1.2M."""
    if n is None:
        return "–"  # noqa: RUF001
    value = float(n)
    for unit in ("", "k", "M", "B", "T"):
        if abs(value) < 999.5 or unit == "T":
            break
        value /= 1000
    return f"{value:.3g}{unit}"


def short(value: float | None) -> str:
    """Return a number in three digits: 0.00121, 3.2e-08."""
    return "–" if value is None else f"{value:.3g}"  # noqa: RUF001


def percent(part: float | None, whole: float | None = 1.0) -> str:
    """Return a share as a percentage."""
    if part is None or not whole:
        return "–"  # noqa: RUF001
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.2g} %"


def duration(seconds: float | None) -> str:
    """Return a duration in its largest two units."""
    if seconds is None:
        return "–"  # noqa: RUF001
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size_s, unit, below_s, below in (
        (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"),
    ):  # fmt: skip
        if whole >= size_s:
            rest = whole % size_s // below_s
            return f"{whole // size_s} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def when(moment: datetime | None) -> Markup:
    """Return a time as its distance from now, with the exact one in its title."""
    if moment is None:
        return Markup("never")
    moment = moment.astimezone(UTC)
    exact = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.isoformat(), exact, _distance((datetime.now(UTC) - moment).total_seconds())
    )


def iso_when(text: str) -> Markup:
    """Return a time that is written in ISO 8601, as when() does."""
    return when(datetime.fromisoformat(text))


def _distance(seconds: float) -> str:
    is_ahead, seconds = seconds < 0, abs(seconds)
    if seconds < 10:
        return "now"
    unit_s, name = next(
        ((unit_s, name) for below_s, unit_s, name in _AGES if seconds < below_s), (_YEAR_S, "year")
    )
    n = int(seconds // unit_s)
    text = f"{n} {name}{'' if n == 1 else 's'}"
    return f"in {text}" if is_ahead else f"{text} ago"


def short_id(commit_id: str | None) -> str:
    """Return the first characters of a commit's id."""
    return "" if commit_id is None else commit_id[:8]


def breakable(text: str) -> Markup:
    """Return a path or name that may be broken into lines after its separators."""
    return Markup("").join(
        escape(char) + Markup("<wbr>") if char in "/._-" else escape(char) for char in text
    )


def sentence(text: str) -> str:
    """Return an error's text as a sentence for people: errors begin small and end without a dot. A
    name at its beginning, such as that of a model, stays as it is.
    """
    text = text.strip()
    end = "" if text.endswith((".", "!", "?")) else "."
    if _NAME.match(text):
        return f"{text}{end}"
    return f"{text[:1].upper()}{text[1:]}{end}"


def with_code(text: str) -> Markup:
    """Return a text whose parts between backticks are code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # the last backtick opens nothing
        parts[-2:] = ["`".join(parts[-2:])]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def browser(agent: str) -> str:
    """Return a browser and its system as people call them, from what it says of itself."""
    name = next((name for mark, name in _BROWSERS if mark in agent), None)
    system = next((name for mark, name in _SYSTEMS if mark in agent), None)
    if name is None:
        return agent[:40] or "an unknown browser"
    return name if system is None else f"{name} on {system}"


FILTERS: Final = {
    "size": size,
    "exact_bytes": exact_bytes,
    "number": number,
    "short_number": short_number,
    "short": short,
    "percent": percent,
    "duration": duration,
    "when": when,
    "iso_when": iso_when,
    "short_id": short_id,
    "breakable": breakable,
    "browser": browser,
    "sentence": sentence,
    "with_code": with_code,
}
