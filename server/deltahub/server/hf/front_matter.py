"""The front matter of a model card: YAML between two lines of dashes, whoever has written it.

Values are made from the parser's events, one by one, and counted before they are made: a short
text of aliases can stand for any number of values, and nothing here may take long, for cards are
read for every list of models, and checked for callers without a token.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import yaml

from deltahub.server.hf.plain import DEEPEST, plain

log = logging.getLogger(__name__)

# Results of large evaluations take some 200 KiB in cards of today.
MAX_FRONT_BYTES: Final = 256 << 10
_FENCE: Final = "---"
# A value counts 2, and 1 for each 8 characters: 32768 values, or twice the largest text.
_MOST: Final = 65_536
_LONGEST_NUMBER: Final = 64  # characters; what is longer is text
# In C where PyYAML was built with it, as its wheels are; the values are the same.
_LOADER: Final[Any] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_TAG: Final = "tag:yaml.org,2002:"
_CONVERTED: Final = frozenset(f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float"))
_TIMESTAMP: Final = f"{_TAG}timestamp"
_TEXTS: Final = frozenset({"!", f"{_TAG}str", f"{_TAG}binary"})
_RESOLVER: Final[Any] = yaml.resolver.Resolver()
_CONSTRUCTOR: Final[Any] = yaml.constructor.SafeConstructor()
# Escapes as JSON has them: of characters beyond 16 bits YAML knows no halves.
_ESCAPES: Final = re.compile(
    r"\\\\|\\u(?P<high>d[89ab][0-9a-f]{2})\\u(?P<low>d[c-f][0-9a-f]{2})|\\ud[89a-f][0-9a-f]{2}",
    re.IGNORECASE,
)


class BadCard(Exception):
    """Front matter that is no mapping in YAML, or too large; says where it is wrong."""


def front_matter(readme: bytes) -> dict[str, Any]:
    """The YAML between two lines of three dashes at the beginning; {} where there is none.

    Values are `plain`, keys are text as it is written. BadCard, and nothing else.
    """
    source = _between_fences(readme)
    if source is None:
        return {}
    try:
        found = _Document().read(yaml.parse(_ESCAPES.sub(_whole, source), _LOADER))
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise BadCard("the front matter must be a mapping: `key: value` lines")
        card: dict[str, Any] = plain(found)
    except BadCard:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise BadCard(f"the front matter is not YAML: {_problem(error)}"[:300]) from error
    except Exception as error:  # a parser's mistake must not take lists and pushes down
        log.exception("front matter of %d characters broke its parser", len(source))
        raise BadCard("the front matter cannot be read") from error
    return card


def _between_fences(readme: bytes) -> str | None:
    head = readme[: MAX_FRONT_BYTES + 16].decode("utf-8", "replace").removeprefix("\ufeff")
    lines = head.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return None
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is not None:
        return "\n".join(lines[1:end])
    if len(readme) > MAX_FRONT_BYTES:
        raise BadCard(f"the front matter does not end within {MAX_FRONT_BYTES >> 10} KiB")
    return None


def _whole(match: re.Match[str]) -> str:
    if match["high"]:
        halves = bytes.fromhex(match["high"] + match["low"])
        return halves.decode("utf-16-be")
    return match[0] if match[0] == "\\\\" else "\ufffd"


def _problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or " ".join(str(error).split())
    return what if mark is None else f"{_place(mark)}: {what}"


def _place(mark: Any) -> str:
    # Counted as an editor does: the line of dashes is the first.
    return f"line {mark.line + 2}, column {mark.column + 1}"


@dataclass
class _Open:
    """A list or mapping whose end is still to come. height: levels in it, itself among them."""

    value: dict[str, Any] | list[Any]
    anchor: str | None
    counted_before: int
    key: str | None = None
    height: int = 1


@dataclass(frozen=True)
class _Named:
    """A value with an anchor, and what an alias of it counts."""

    value: Any
    count: int
    height: int


class _Document:
    """One document, made from its events."""

    def __init__(self) -> None:
        self._open: list[_Open] = [_Open([], None, 0)]
        self._named: dict[str, _Named] = {}
        self._counted = 0

    def read(self, events: Iterator[Any]) -> Any:
        """The value; None for no document."""
        n_documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                n_documents += 1
                if n_documents > 1:
                    raise _bad(event, "one document is enough")
            elif isinstance(event, yaml.ScalarEvent):
                self._take_scalar(event)
            elif isinstance(event, yaml.AliasEvent):
                self._take_alias(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._end()
        values = self._open[0].value
        assert isinstance(values, list)
        return values[0] if values else None

    def _take_scalar(self, event: Any) -> None:
        count = 2 + len(event.value) // 8
        self._count(event, count)
        top = self._open[-1]
        if isinstance(top.value, dict) and top.key is None:
            if event.value == "<<" and event.implicit[0]:
                raise _bad(event, "merge keys (<<) are not taken here: write the fields out")
            top.key = event.value
            return
        value = _scalar(event)
        if event.anchor is not None:
            self._named[event.anchor] = _Named(value, count, 0)
        self._put(value)

    def _take_alias(self, event: Any) -> None:
        self._require_no_key(event)
        # What contains itself has no name yet when its alias comes.
        named = self._named.get(event.anchor)
        if named is None:
            raise _bad(event, f"there is nothing whole named &{event.anchor} before it")
        self._count(event, named.count)
        self._require_depth(event, named.height)
        self._open[-1].height = max(self._open[-1].height, named.height + 1)
        self._put(named.value)

    def _begin(self, event: Any) -> None:
        self._require_no_key(event)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", f"{_TAG}{'map' if is_mapping else 'seq'}"):
            raise _bad(event, f"the tag {event.tag} has no meaning here")
        before = self._counted
        self._count(event, 2)
        self._require_depth(event, 1)
        self._open.append(_Open({} if is_mapping else [], event.anchor, before))

    def _end(self) -> None:
        ended = self._open.pop()
        above = self._open[-1]
        above.height = max(above.height, ended.height + 1)
        if ended.anchor is not None:
            count = self._counted - ended.counted_before
            self._named[ended.anchor] = _Named(ended.value, count, ended.height)
        self._put(ended.value)

    def _put(self, value: Any) -> None:
        top = self._open[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        else:
            assert top.key is not None
            top.value[top.key] = value
            top.key = None

    def _count(self, event: Any, count: int) -> None:
        self._counted += count
        if self._counted > _MOST:
            raise _bad(event, "too many values, those that aliases stand for counted as well")

    def _require_depth(self, event: Any, levels: int) -> None:
        # The first that is open is no part of the document.
        if len(self._open) - 1 + levels > DEEPEST:
            raise _bad(event, f"nested deeper than {DEEPEST} levels")

    def _require_no_key(self, event: Any) -> None:
        top = self._open[-1]
        if isinstance(top.value, dict) and top.key is None:
            raise _bad(event, "a key must be text, and no list, mapping or alias")


def _scalar(event: Any) -> Any:
    tag, value = event.tag, event.value
    if tag is None and event.implicit[0]:
        tag = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))
        if tag not in _CONVERTED and tag != _TIMESTAMP:
            return value
    if tag is None or tag in _TEXTS:
        return value
    if tag not in _CONVERTED and tag != _TIMESTAMP:
        raise _bad(event, f"the tag {tag} has no meaning here")
    if len(value) > _LONGEST_NUMBER:
        return value
    try:
        made = _CONSTRUCTOR.yaml_constructors[tag](_CONSTRUCTOR, yaml.ScalarNode(tag, value))
    except (ValueError, LookupError, AttributeError, ArithmeticError, yaml.YAMLError) as error:
        kind = tag.removeprefix(_TAG)
        raise _bad(event, f"{value!r} is no {kind}: put it in quotes to mean text") from error
    return made.isoformat() if isinstance(made, date) else made


def _bad(event: Any, what: str) -> BadCard:
    return BadCard(f"the front matter cannot be read: {_place(event.start_mark)}: {what}"[:300])
