"""The front matter of a model card: YAML between two lines of three dashes.

Cards are untrusted input, and the hub reads them for every list of models, also for callers without
a token. So the events of the YAML parser are checked before any value is made: anchors and aliases
are refused, because a short text with them can expand to any number of values, and the depth and
the number of values have limits.
"""

import logging
import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Final

import yaml
from yaml.constructor import SafeConstructor

from deltahub.registry.cards.plain_values import MAX_NESTING, plain

if not yaml.__with_libyaml__:
    raise ImportError(
        "PyYAML lacks its parser in C: install PyYAML from its wheel, or build it with libyaml"
    )

log = logging.getLogger(__name__)

# Cards of today hold up to about 200 KiB of evaluation results.
MAX_FRONT_BYTES: Final = 256 << 10
_FENCE: Final = "---"
_MAX_VALUES: Final = 32_768  # keys, lists and mappings count as well
_MAX_NUMBER_CHARS: Final = 64  # characters; a longer number is shown as text
_TAG: Final = "tag:yaml.org,2002:"
# JSON writes a character above U+FFFF as two \u escapes, a surrogate pair, which YAML refuses.
_ESCAPES: Final = re.compile(
    r"\\\\|\\u(?P<high>d[89ab][0-9a-f]{2})\\u(?P<low>d[c-f][0-9a-f]{2})|\\ud[89a-f][0-9a-f]{2}",
    re.IGNORECASE,
)


class BadCard(Exception):
    """Front matter that is not a YAML mapping or exceeds a limit; the text names the place."""


def front_matter(readme: bytes) -> dict[str, Any]:
    """Parse the front matter at the beginning of a README.md; {} if there is none.

    Values are as `plain` returns them, keys are the card's text. Raises BadCard, and nothing else.
    """
    source = _between_fences(readme)
    if source is None:
        return {}
    try:
        source = _ESCAPES.sub(_unescape, source)
        _scan(source)
        found = yaml.load(source, _Loader)  # a safe loader: it creates no Python objects
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise BadCard("the front matter must be a mapping: `key: value` lines")
        card: dict[str, Any] = plain(found)
    except BadCard:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise BadCard(f"the front matter is not YAML: {_problem(error)}"[:300]) from error
    except Exception as error:  # a bug in the parser must not break lists and pushes
        log.exception("front matter of %d characters broke its parser", len(source))
        raise BadCard("the front matter cannot be read") from error
    return card


def body(readme: bytes) -> str:
    """Return the text of a README.md after its front matter; all of it if that does not end."""
    text = readme.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = text.splitlines(keepends=True)
    end = _end_of_front(lines)
    return text if end is None else "".join(lines[end + 1 :])


def _end_of_front(lines: Sequence[str]) -> int | None:
    """The line of dashes that ends the front matter; None if there is none."""
    if not lines or lines[0].rstrip() != _FENCE:
        return None
    return next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)


def _between_fences(readme: bytes) -> str | None:
    head = readme[: MAX_FRONT_BYTES + 16].decode("utf-8", "replace").removeprefix("\ufeff")
    lines = head.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return None
    end = _end_of_front(lines)
    if end is not None:
        return "\n".join(lines[1:end])
    if len(readme) > MAX_FRONT_BYTES:
        raise BadCard(f"the front matter does not end within {MAX_FRONT_BYTES >> 10} KiB")
    return None


def _unescape(match: re.Match[str]) -> str:
    if match["high"]:
        halves = bytes.fromhex(match["high"] + match["low"])
        return halves.decode("utf-16-be")
    return match[0] if match[0] == "\\\\" else "\ufffd"


def _problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return problem if mark is None else f"{_place(mark)}: {problem}"


def _place(mark: Any) -> str:
    # Lines count from 1 and include the line of dashes, as in an editor.
    return f"line {mark.line + 2}, column {mark.column + 1}"


def _scan(source: str) -> None:
    """Raise BadCard for text that exceeds a limit, before the loader makes any value."""
    depth = n_values = 0
    for event in yaml.parse(source, yaml.CSafeLoader):
        if isinstance(event, yaml.NodeEvent):
            if event.anchor is not None:
                raise _bad_card(
                    event, "anchors (&) and aliases (*) are not taken: repeat the value"
                )
            n_values += 1
            if n_values > _MAX_VALUES:
                raise _bad_card(event, f"more than {_MAX_VALUES} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_NESTING:
                raise _bad_card(event, f"nested deeper than {MAX_NESTING} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _bad_card(at: Any, problem: str) -> BadCard:
    """The error for a wrong YAML event or node `at`."""
    return BadCard(f"the front matter cannot be read: {_place(at.start_mark)}: {problem}"[:300])


class _Loader(yaml.CSafeLoader):
    """PyYAML's safe loader limited to the values of JSON: no sets, no bytes, keys are text."""


def _mapping(loader: Any, node: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _bad_card(key, "a key must be text, and no list or mapping")
            if key.tag == f"{_TAG}merge":
                raise _bad_card(key, "merge keys (<<) are not taken: write the fields out")
            key.tag = f"{_TAG}str"
    return loader.construct_mapping(node, deep=True)


def _converted(kind: str) -> Callable[[Any, Any], Any]:
    """PyYAML's conversion of scalars of one kind, with the place in the error of a wrong scalar."""
    convert = SafeConstructor.yaml_constructors[f"{_TAG}{kind}"]

    def construct(loader: Any, node: Any) -> Any:
        text = loader.construct_scalar(node)
        if len(text) > _MAX_NUMBER_CHARS:
            return text
        try:
            value = convert(loader, node)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            problem = f"{text!r} is no {kind}: put it in quotes to mean text"
            raise _bad_card(node, problem) from error
        return value.isoformat() if isinstance(value, date) else value

    return construct


def _unknown(_loader: Any, node: Any) -> Any:
    raise _bad_card(node, f"the tag {node.tag} has no meaning here")


_Loader.yaml_constructors = {
    None: _unknown,
    f"{_TAG}map": _mapping,
    f"{_TAG}seq": SafeConstructor.construct_yaml_seq,
    **{f"{_TAG}{kind}": _converted(kind) for kind in ("bool", "float", "int", "null", "timestamp")},
    # YAML gives the scalars `<<` and `=` tags of their own; as values they are text here.
    **{
        f"{_TAG}{kind}": SafeConstructor.construct_yaml_str
        for kind in ("str", "binary", "merge", "value")
    },
}
