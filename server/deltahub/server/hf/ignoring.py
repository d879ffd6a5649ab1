"""What a .gitignore leaves out, as git reads it, in time that its author cannot stretch.

Nothing here backtracks: a star takes as little as it can, which is right because the last part of
a pattern is tied to the end, and every comparison is counted. Characters are those of Unicode,
where git has bytes. Of `**` the handbook's rules hold: between slashes, and else it is `*`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

MAX_IGNORE_BYTES: Final = 64 << 10
_MOST_PATTERNS: Final = 1000
# Parts of paths that are compared with parts of patterns: two seconds at worst, and nearly a
# thousand patterns for each of a thousand files.
_MOST_STEPS: Final = 1_000_000
_COMPARED_IN_STEP: Final = 4  # characters with ?, classes or what stands beside them
_LAST: Final = "\U0010ffff"
# What [:name:] stands for within a class, in ASCII.
_NAMED: Final = {
    "alnum": ("09", "AZ", "az"), "alpha": ("AZ", "az"), "blank": ("  ", "\t\t"),
    "cntrl": ("\0\x1f", "\x7f\x7f"), "digit": ("09",), "graph": ("!~",), "lower": ("az",),
    "print": (" ~",), "punct": ("!/", ":@", "[`", "{~"), "space": ("  ", "\t\r"),
    "upper": ("AZ",), "xdigit": ("09", "AF", "af"),
}  # fmt: skip


class IgnoreLimit(Exception):
    """A .gitignore that would take too long; says what would not."""


class _NeverMatches(Exception):
    """A pattern that git takes, and finds nothing with."""


@dataclass(frozen=True)
class _Class:
    """One of several characters: of any of the ranges, or of none where it is negated."""

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool = False

    def __contains__(self, char: str) -> bool:
        return any(first <= char <= last for first, last in self.ranges) != self.is_negated


@dataclass(frozen=True)
class _Chunk:
    """What lies between two stars: of one width, compared in one go.

    wanted: the text itself, or for each character what holds it. compared: how many comparisons
    it takes, 0 for text.
    """

    wanted: str | tuple[str | _Class, ...]
    compared: int

    @property
    def width(self) -> int:
        return len(self.wanted)

    def is_at(self, name: str, at: int) -> bool:
        if isinstance(self.wanted, str):
            return name.startswith(self.wanted, at)
        if at + len(self.wanted) > len(name):
            return False
        return all(name[at + i] in one for i, one in enumerate(self.wanted))

    def find_end(self, name: str, at: int, end: int) -> int | None:
        """Where its first occurrence between `at` and `end` is over."""
        if isinstance(self.wanted, str):
            found = name.find(self.wanted, at, end)
            return None if found < 0 else found + self.width
        for begin in range(at, end - self.width + 1):
            if self.is_at(name, begin):
                return begin + self.width
        return None


@dataclass(frozen=True)
class _Part:
    """A pattern for one part of a path: chunks with a star between each two.

    compared: for any name; compared_each: for each character of a name.
    """

    chunks: tuple[_Chunk, ...]
    compared: int
    compared_each: int

    def steps(self, name: str) -> int:
        n_chunks = min(len(self.chunks), len(name))
        compared = n_chunks + self.compared + self.compared_each * len(name)
        return 1 + compared // _COMPARED_IN_STEP

    def fits(self, name: str) -> bool:
        first, last = self.chunks[0], self.chunks[-1]
        if len(self.chunks) == 1:
            return len(name) == first.width and first.is_at(name, 0)
        at, end = first.width, len(name) - last.width
        if end < at or not first.is_at(name, 0) or not last.is_at(name, end):
            return False
        for chunk in self.chunks[1:-1]:
            found = chunk.find_end(name, at, end)
            if found is None:
                return False
            at = found
        return True


_ANY_PARTS: Final = None  # ** between slashes
_Parts: TypeAlias = tuple[_Part | None, ...]


@dataclass(frozen=True)
class _Pattern:
    """A line. parts: of a whole path where is_anchored, else one, for any name."""

    parts: _Parts
    is_anchored: bool
    is_negated: bool
    is_for_folders: bool


@dataclass
class Ignore:
    """Decides which paths are left out."""

    patterns: Sequence[_Pattern]
    _folders: dict[str, bool] = field(default_factory=dict)
    _steps: int = 0

    def is_ignored(self, path: str) -> bool:
        """Whether a file is left out, itself or by a folder above it. IgnoreLimit."""
        parts = path.split("/")
        for n_parts in range(1, len(parts)):
            folder = "/".join(parts[:n_parts])
            is_out = self._folders.get(folder)
            if is_out is None:
                self._step(1 + n_parts // 8)  # for remembering it
                is_out = self._folders[folder] = self._decide(parts[:n_parts], is_folder=True)
            if is_out:
                return True
        return self._decide(parts, is_folder=False)

    def _decide(self, names: list[str], *, is_folder: bool) -> bool:
        # The last that fits counts; self.patterns has it first.
        for pattern in self.patterns:
            if (is_folder or not pattern.is_for_folders) and self._fits(pattern, names):
                return not pattern.is_negated
        return False

    def _fits(self, pattern: _Pattern, names: list[str]) -> bool:
        parts = pattern.parts
        if not pattern.is_anchored:
            return self._fits_name(parts[0], names[-1])
        at, after_stars, retry = 0, -1, 0
        here = 0
        while at < len(names):
            if here < len(parts) and parts[here] is _ANY_PARTS:
                here += 1
                if here == len(parts):
                    return True
                after_stars, retry = here, at
            elif here < len(parts) and self._fits_name(parts[here], names[at]):
                here, at = here + 1, at + 1
            elif after_stars >= 0:
                retry += 1
                here, at = after_stars, retry
            else:
                return False
        return here == len(parts)

    def _fits_name(self, part: _Part | None, name: str) -> bool:
        assert part is not None
        self._step(part.steps(name))
        return part.fits(name)

    def _step(self, n_steps: int) -> None:
        self._steps += n_steps
        if self._steps > _MOST_STEPS:
            raise IgnoreLimit("it has too many patterns for that many files: send fewer at once")


def parse_ignore(text: str) -> Ignore:
    """The patterns of a .gitignore. IgnoreLimit."""
    if len(text) > MAX_IGNORE_BYTES:
        raise IgnoreLimit(f"it has more than {MAX_IGNORE_BYTES >> 10} KiB")
    patterns: list[_Pattern] = []
    for line in text.removeprefix("\ufeff").split("\n"):
        shown = _without_spaces(line.removesuffix("\r"))
        if not shown or shown.startswith("#"):
            continue
        if len(patterns) == _MOST_PATTERNS:
            raise IgnoreLimit(f"it has more than {_MOST_PATTERNS} patterns")
        pattern = _parse_pattern(shown)
        if pattern is not None:
            patterns.append(pattern)
    return Ignore(patterns[::-1])


def _without_spaces(line: str) -> str:
    """The line without the spaces at its end; one after a backslash stays."""
    bare = line.rstrip(" ")
    n_backslashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if n_backslashes % 2 and len(line) > len(bare) else bare


def _parse_pattern(line: str) -> _Pattern | None:
    is_negated = line.startswith("!")
    body = line[is_negated:]
    is_for_folders = body.endswith("/")
    body = body.removesuffix("/")
    is_anchored = "/" in body
    try:
        parts = _parts(body.removeprefix("/"), is_anchored=is_anchored)
    except _NeverMatches:
        return None
    return _Pattern(parts, is_anchored, is_negated, is_for_folders)


# The tokens of a pattern.
_SLASH: Final = object()
_STAR: Final = object()


def _parts(body: str, *, is_anchored: bool) -> _Parts:
    parts: list[_Part | None] = []
    tokens: list[Any] = []
    for token in [*_tokens(body), _SLASH]:
        if token is not _SLASH:
            tokens.append(token)
            continue
        if is_anchored and len(tokens) > 1 and all(one is _STAR for one in tokens):
            parts.append(_ANY_PARTS)
        else:
            parts.append(_part(tokens))
        tokens = []
    return tuple(parts)


def _part(tokens: Sequence[Any]) -> _Part:
    chunks, now, is_after_star = [], list[Any](), False
    for token in tokens:
        if token is not _STAR:
            now.append(token)
        elif not is_after_star:
            chunks.append(_chunk(now))
            now = []
        is_after_star = token is _STAR
    chunks.append(_chunk(now))
    ends = (chunks[0].compared, chunks[-1].compared)
    return _Part(tuple(chunks), sum(ends), sum(chunk.compared for chunk in chunks[1:-1]))


def _chunk(tokens: Sequence[str | _Class]) -> _Chunk:
    if all(isinstance(token, str) for token in tokens):
        return _Chunk("".join(str(token) for token in tokens), 0)
    compared = sum(1 if isinstance(one, str) else 1 + len(one.ranges) for one in tokens)
    return _Chunk(tuple(tokens), compared)


def _tokens(body: str) -> Iterator[Any]:
    """Characters, classes of them, stars and slashes."""
    at = 0
    while at < len(body):
        char = body[at]
        at += 1
        if char == "\\":
            if at == len(body):
                raise _NeverMatches
            char = body[at]
            at += 1
            yield _SLASH if char == "/" else char
        elif char == "[":
            found, at = _class(body, at)
            yield found
        elif char == "?":
            yield _Class((("\0", _LAST),))
        else:
            yield {"*": _STAR, "/": _SLASH}.get(char, char)


def _class(body: str, at: int) -> tuple[_Class, int]:
    """A class, and where what follows it begins; `at` is after its bracket."""
    is_negated = body[at : at + 1] in ("!", "^")
    begin = at = at + is_negated
    ranges: list[tuple[str, str]] = []
    before: str | None = None  # where a range may begin
    while body[at : at + 1] != "]" or at == begin:
        if body.startswith("[:", at):
            end = body.find("]", at + 2)
            if end < 0:
                raise _NeverMatches
            if end > at + 2 and body[end - 1] == ":":
                named = _NAMED.get(body[at + 2 : end - 1])
                if named is None:
                    raise _NeverMatches
                ranges += [(one[0], one[1]) for one in named]
                at, before = end + 1, None
                continue
        is_range = body.startswith("-", at) and body[at + 1 : at + 2] not in ("", "]")
        if is_range and before is not None:
            last, at = _member(body, at + 1)
            ranges.append((before, last))  # of nothing, where it runs backwards
            before = None
        else:
            before, at = _member(body, at)
            ranges.append((before, before))
    return _Class(tuple(ranges), is_negated), at + 1


def _member(body: str, at: int) -> tuple[str, int]:
    """A character of a class, and where the next begins."""
    at += body[at : at + 1] == "\\"
    if at >= len(body):
        raise _NeverMatches
    return body[at], at + 1
