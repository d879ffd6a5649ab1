"""Private examples of a task, read from files of JSON lines."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltahub.client.errors import InvalidArgument

_LONGEST: Final = 20_000
_MOST: Final = 1_000_000
_FIELDS: Final = {"input", "completion"}


@dataclass(frozen=True)
class Example:
    """An input, and what should come out of it."""

    input: str
    completion: str | None = None


def read_examples(path: str | Path) -> list[Example]:
    """The examples of a file: on each line {"input": ..., "completion": ...}, of which completion
    may be missing. InvalidArgument names the line that is wrong, and repeats nothing of it.
    """
    found: list[Example] = []
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if number > _MOST:
                    raise InvalidArgument(f"{path} has more than {_MOST} lines: give fewer")
                if line.strip():
                    found.append(_example(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"{path} cannot be read: {exc}") from exc
    return found


def different(examples: Iterable[Example]) -> list[Example]:
    """The examples without those whose input was there before."""
    return list({each.input: each for each in reversed(list(examples))}.values())[::-1]


def require_completions(examples: Sequence[Example], what: str) -> None:
    """InvalidArgument if one has no completion."""
    n = sum(each.completion is None for each in examples)
    if n or not examples:
        raise InvalidArgument(
            f"{what} need a completion each, and {n} of {len(examples)} have none: give them, or"
            " leave the tests out"
        )


def _example(line: str, where: str) -> Example:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise InvalidArgument(f"{where}: this is no JSON") from exc
    if not isinstance(given, dict) or "input" not in given or given.keys() - _FIELDS:
        raise InvalidArgument(
            f'{where}: write {{"input": "...", "completion": "..."}}, where completion may be'
            " missing"
        )
    text, completion = given["input"], given.get("completion")
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
        raise InvalidArgument(f"{where}: input must be a text of 1 to {_LONGEST} characters")
    if completion is not None and (not isinstance(completion, str) or len(completion) > _LONGEST):
        raise InvalidArgument(f"{where}: completion must be a text of up to {_LONGEST} characters")
    return Example(text, completion)
