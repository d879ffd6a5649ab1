"""Decides which files of an upload a .gitignore excludes, with the library pathspec.

pathspec turns each pattern into a regular expression. Python's `re` backtracks at every star, so a
hostile pattern could take hours. Therefore patterns have limits, and the steps of a match are
estimated and limited before a path is matched.
"""

import re
import warnings
from collections import Counter
from math import comb, prod
from typing import Final, TypeAlias

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

MAX_IGNORE_BYTES: Final = 64 << 10
_MAX_PATTERNS: Final = 1000
_MAX_LENGTH: Final = 1024  # characters of a pattern; paths are not longer
_MAX_STARS: Final = 8  # of a pattern
_MAX_CLASSES: Final = 300  # of all patterns, because `re` compiles a wide one in 2 ms
# Estimated steps of `re`, which takes 20 to 100 million a second. The first limit is for all files
# of a request; the second for one pattern and one path, because `re` blocks all other threads.
_MAX_STEPS: Final = 100_000_000
_MAX_STEPS_AT_ONCE: Final = 5_000_000
_STEPS_OF_A_CALL: Final = 100

# An attribute that tells how git keeps a file.
_FILTER: Final = re.compile(r"[-!]?filter(=\S*)?")

# `re` warns that `[[` could mean something else in later versions of Python.
warnings.filterwarnings("ignore", "Possible ", FutureWarning, r"pathspec\.pattern")


# The stars that multiply the steps of a pattern: the number of `**/` minus one, and for each part
# with several `*` their number minus one.
_Stars: TypeAlias = tuple[int, tuple[int, ...]]


class IgnoreLimit(Exception):
    """A .gitignore exceeds a limit on its size or matching time; the text names the limit."""


class Ignore:
    """The patterns of a .gitignore. For one request, because it sums the steps of all paths."""

    def __init__(self, patterns: list[GitIgnoreSpecPattern], costs: Counter[_Stars]) -> None:
        self._spec = GitIgnoreSpec(patterns, backend="simple")
        self._costs = costs
        self._steps = 0

    def is_ignored(self, path: str) -> bool:
        """Whether a pattern excludes the file or a folder above it. Raises IgnoreLimit."""
        parts = path.split("/")
        longest = max(len(part) for part in parts)
        for (folders, stars), n_patterns in self._costs.items():
            ways = comb(len(parts) + folders, folders)
            ways *= prod(comb(longest + n_stars, n_stars) for n_stars in stars)
            steps = len(path) * ways + _STEPS_OF_A_CALL
            self._steps += steps * n_patterns
            if steps > _MAX_STEPS_AT_ONCE:
                raise IgnoreLimit("a pattern has too many stars for a path that long: use fewer")
        if self._steps > _MAX_STEPS:
            raise IgnoreLimit("it has too many patterns for that many files: send fewer at once")
        return self._spec.match_file(path)


def parse_ignore(text: str) -> Ignore:
    """Parse the patterns of a .gitignore. Raises IgnoreLimit."""
    _check_length(text)
    lines = text.removeprefix("\ufeff").split("\n")
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    if len(lines) > _MAX_PATTERNS:
        raise IgnoreLimit(f"it has more than {_MAX_PATTERNS} patterns")
    if sum(line.count("[") for line in lines) > _MAX_CLASSES:
        raise IgnoreLimit(f"it has more than {_MAX_CLASSES} classes of characters ([...])")
    patterns = []
    costs = Counter[_Stars]()
    for line in lines:
        cost = _cost(line)
        try:
            patterns.append(GitIgnoreSpecPattern(line))
        except (GitIgnorePatternError, re.error):
            continue  # git accepts such a line, which matches nothing
        costs[cost] += 1
    return Ignore(patterns, costs)


def parse_attributes(text: str) -> Ignore:
    """Parse a .gitattributes: is_ignored() of a path tells whether Git LFS keeps it.

    As for a .gitignore, the last line that matches a path decides. Raises IgnoreLimit.
    """
    _check_length(text)
    lines = []
    for line in text.removeprefix("\ufeff").split("\n"):
        pattern, *attributes = line.split()[:64] or [""]
        if not pattern or pattern.startswith(("#", "!", "[attr]")):
            continue
        last = next((each for each in reversed(attributes) if _FILTER.fullmatch(each)), None)
        if last is not None:
            lines.append(f"{'' if last == 'filter=lfs' else '!'}{pattern.strip(chr(34))}")
    return parse_ignore("\n".join(lines))


def _check_length(text: str) -> None:
    if len(text) > MAX_IGNORE_BYTES:
        raise IgnoreLimit(f"it has more than {MAX_IGNORE_BYTES >> 10} KiB")


def _cost(line: str) -> _Stars:
    if len(line) > _MAX_LENGTH:
        raise IgnoreLimit(f"a pattern has more than {_MAX_LENGTH} characters")
    parts = line.lstrip("!").rstrip().split("/")
    n_folders = parts.count("**")
    n_stars = [part.count("*") for part in parts if part != "**"]
    if n_folders + sum(n_stars) > _MAX_STARS:
        raise IgnoreLimit(f"a pattern has more than {_MAX_STARS} stars")
    # A pattern without a slash, except at its end, matches in every folder, as if `**/` preceded.
    n_folders += not any(parts[1:])
    return max(0, n_folders - 1), tuple(sorted(n - 1 for n in n_stars if n > 1))
