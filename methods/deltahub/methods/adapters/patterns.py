"""Which pattern of an adapter_config.json a module matches, by PEFT's rule, in bounded time.

A pattern is somebody else's regular expression. Python's `re` goes back over what it has matched,
so that a short pattern can keep a worker busy for days.
"""

import math
import re
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from deltahub.methods.adapters.names import quoted
from deltahub.methods.errors import BadAdapter

Value = TypeVar("Value")

_MAX_PATTERN: Final = 1_000
# The time of a repeated group is exponential, and so is that of a reference to a group.
_UNBOUNDED: Final = re.compile(r"\)[*+{]|\\\d|\(\?P=")
_REPEAT: Final = re.compile(r"[*+{]")
# Each doubles the ways through a pattern; other uses of ? do not.
_OPTION: Final = re.compile(r"(?<![(*+}])\?")
# Characters that are compared in the worst case, which take some tens of seconds. Sixty patterns
# such as .*layers.3..*(q|k|v|o)_proj on a model of 80 layers are below it.
_MAX_STEPS: Final = 2_000_000_000


def values_of(
    patterns: Mapping[str, Value], default: Value, modules: Collection[str], field: str
) -> dict[str, Value]:
    """Module -> the value of the first pattern that matches the module's name, or its end after a
    dot; or the default. BadAdapter, which names the field, for a pattern that is no regular
    expression or takes too long.
    """
    if not patterns:
        return dict.fromkeys(modules, default)
    _check_time(patterns, modules, field)
    compiled = [(_compiled(pattern, field), value) for pattern, value in patterns.items()]
    return {
        module: next((value for each, value in compiled if each.match(module)), default)
        for module in modules
    }


def _check_time(patterns: Collection[str], modules: Collection[str], field: str) -> None:
    length = max(map(len, modules), default=0) + 1
    # PEFT's own beginning ends at any dot.
    starts = max((module.count(".") for module in modules), default=0) + 1
    for pattern in patterns:
        if len(pattern) > _MAX_PATTERN or _UNBOUNDED.search(pattern):
            raise BadAdapter(
                f"the pattern {quoted(pattern)} in {field} repeats a group or refers to one, or is"
                f" longer than {_MAX_PATTERN:,} characters, which may take forever to compare:"
                " write names of modules"
            )
    if sum(_steps(pattern, length) for pattern in patterns) * starts * len(modules) > _MAX_STEPS:
        raise BadAdapter(
            f"the patterns in {field} would take too long to compare with {len(modules):,} modules:"
            " write names of modules in place of expressions such as .*"
        )


def _steps(pattern: str, length: int) -> int:
    """An upper bound of the steps to compare a pattern with a name of this length once."""
    alternatives = math.prod(group.count("|") + 1 for group in pattern.split(")"))
    options = len(_OPTION.findall(pattern))
    return int(alternatives * 2**options * length ** len(_REPEAT.findall(pattern)))


def _compiled(pattern: str, field: str) -> re.Pattern[str]:
    try:
        return re.compile(rf"(?:.*\.)?(?:{pattern})$")
    except (re.error, OverflowError, RecursionError) as exc:
        raise BadAdapter(
            f"{field} has {quoted(pattern)}, which is no regular expression: {exc}"
        ) from exc
