"""Where the training text comes from: files that every Python 3.11 installation has."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Corpus = Literal["python", "documentation", "headers", "tables"]

# Packages that are not on every installation (tests, IDLE), that are no running text, or that a
# fine-tune is kept for.
_NOT_IN_BASE = frozenset(
    "site-packages dist-packages test tests idlelib turtledemo lib2to3 tkinter ensurepip "
    "encodings pydoc_data __pycache__".split()
)
_FEWEST_BYTES = 200_000


class MissingText(Exception):
    """This Python installation lacks the files a corpus is made of."""


def load_corpus(corpus: Corpus, max_bytes: int) -> str:
    """At most `max_bytes` characters of text, the same on every run of one Python installation."""
    parts: list[str] = []
    size = 0
    for path in files_of(corpus):
        text = path.read_text(encoding="utf-8", errors="replace")
        parts.append(text)
        size += len(text)
        if size >= max_bytes:
            break
    joined = "\n".join(parts)[:max_bytes]
    if len(joined) < _FEWEST_BYTES:
        raise MissingText(
            f"corpus {corpus!r} has {len(joined)} characters here, it needs {_FEWEST_BYTES}: "
            "install the complete standard library and headers of this Python (python3-dev)"
        )
    return joined


def files_of(corpus: Corpus) -> Iterator[Path]:
    paths = sysconfig.get_paths()
    stdlib = Path(paths["stdlib"])
    match corpus:
        case "python":
            for path in sorted(stdlib.rglob("*.py")):
                if not _NOT_IN_BASE.intersection(path.relative_to(stdlib).parts[:-1]):
                    yield path
        case "documentation":
            yield stdlib / "pydoc_data" / "topics.py"
        case "headers":
            yield from sorted(Path(paths["include"]).rglob("*.h"))
        case "tables":
            yield from sorted((stdlib / "encodings").glob("*.py"))
