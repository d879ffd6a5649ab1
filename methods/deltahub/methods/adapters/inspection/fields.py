"""Reads one field of an adapter_config.json at a time, and says which is wrong and why."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from deltahub.methods.adapters.names import quoted
from deltahub.methods.errors import BadAdapter

MAX_RANK: Final = 65_536
MAX_ALPHA: Final = 1e9
MAX_LIST: Final = 100_000
MAX_TEXT: Final = 4_096


class Fields:
    """The fields of one adapter_config.json. A field that is missing or null has its default, as
    PEFT has it; one of a wrong type or size is BadAdapter.
    """

    def __init__(self, values: Mapping[str, Any], title: str) -> None:
        self._values = values
        self._title = title

    def wrong(self, name: str, must_be: str) -> BadAdapter:
        """The error for a field that is not what it must be."""
        return BadAdapter(
            f"{name} in adapter_config.json of {self._title} is {quoted(self._values.get(name))};"
            f" it must be {must_be}: save the adapter again with PEFT, or correct the file"
        )

    def flag(self, name: str) -> bool:
        """False by default."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return bool(value)

    def text(self, name: str, pattern: str = r"(?s).*") -> str | None:
        """At most MAX_TEXT characters that match the pattern."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self.wrong(name, f"a text of at most {MAX_TEXT} characters")
        if not re.fullmatch(pattern, value):
            raise self.wrong(name, f"a text that matches {pattern}")
        return value

    def rank(self, name: str, default: int) -> int:
        """1 to MAX_RANK."""
        value = self._values.get(name)
        if value is None:
            return default
        if not _is_rank(value):
            raise self.wrong(name, f"a whole number from 1 to {MAX_RANK:,}")
        return int(value)

    def alpha(self, name: str, default: float) -> float:
        """Any finite number but 0, of at most MAX_ALPHA."""
        value = self._values.get(name)
        if value is None:
            return default
        if not _is_alpha(value):
            raise self.wrong(name, f"a number other than 0, of at most {MAX_ALPHA:g}")
        return float(value)

    def ranks(self, name: str) -> dict[str, int]:
        """Pattern of modules -> rank."""
        pairs = self._pairs(name)
        if not all(map(_is_rank, pairs.values())):
            raise self.wrong(name, f"a whole number from 1 to {MAX_RANK:,} for each pattern")
        return pairs

    def alphas(self, name: str) -> dict[str, float]:
        """Pattern of modules -> alpha."""
        pairs = self._pairs(name)
        if not all(map(_is_alpha, pairs.values())):
            raise self.wrong(name, "a number other than 0 for each pattern")
        return {pattern: float(alpha) for pattern, alpha in pairs.items()}

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts."""
        return None if self._values.get(name) is None else self._texts(name)

    def text_or_texts(self, name: str) -> str | tuple[str, ...] | None:
        """A text, or a list of them."""
        if isinstance(self._values.get(name), str):
            return self.text(name)
        return self.texts(name)

    def numbers(self, name: str, one_is_enough: bool = False) -> tuple[int, ...] | None:
        """A list of whole numbers of at least 0; or a single one."""
        value = self._values.get(name)
        if value is None:
            return None
        values = [value] if one_is_enough and isinstance(value, int) else value
        if not _are_indices(values):
            raise self.wrong(name, "a list of whole numbers of at least 0")
        return tuple(values)

    def ranges(self, name: str) -> tuple[tuple[int, int], ...] | None:
        """A list of pairs of whole numbers."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LIST:
            raise self.wrong(name, "a list of pairs of whole numbers")
        for pair in value:
            if not _are_indices(pair) or len(pair) != 2:
                raise self.wrong(name, "a list of pairs of whole numbers")
        return tuple((first, last) for first, last in value)

    def token_rows(self, name: str) -> dict[str, tuple[int, ...]] | None:
        """Module -> rows. A list alone is of the module `embed_tokens`, as for PEFT."""
        value = self._values.get(name)
        if value is None:
            return None
        rows = {"embed_tokens": value} if isinstance(value, list) else value
        if not isinstance(rows, dict) or not all(map(_are_indices, rows.values())):
            raise self.wrong(name, "lists of whole numbers of at least 0")
        return {module: tuple(indices) for module, indices in rows.items()}

    def _pairs(self, name: str) -> dict[str, Any]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > MAX_LIST:
            raise self.wrong(name, f"an object of at most {MAX_LIST:,} patterns")
        return dict(value)

    def _texts(self, name: str) -> tuple[str, ...]:
        value = self._values[name]
        if not isinstance(value, list) or len(value) > MAX_LIST:
            raise self.wrong(name, f"a list of at most {MAX_LIST:,} texts")
        if not all(isinstance(each, str) and len(each) <= MAX_TEXT for each in value):
            raise self.wrong(name, f"a list of texts of at most {MAX_TEXT} characters")
        return tuple(value)


def _is_rank(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_RANK


def _is_alpha(value: object) -> bool:
    # Compared before it becomes a float: a whole number may be too large for one.
    if type(value) not in (int, float) or not isinstance(value, int | float):
        return False
    return 0 < abs(value) <= MAX_ALPHA and math.isfinite(value)


def _are_indices(values: object) -> bool:
    if not isinstance(values, list) or len(values) > MAX_LIST:
        return False
    return all(type(value) is int and 0 <= value < 2**31 for value in values)
