"""Forms from the schema of a kind's arguments, and arguments from what a form sends."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError
from starlette.datastructures import ImmutableMultiDict

from deltahub.methods.kinds.kind import TEXT_FILE, JobArguments, fault_text

Widget = Literal["text", "area", "lines", "json_lines", "number", "choice", "flag", "maybe"]
# These the page asks for itself.
_APART: Final = frozenset({"dry_run"})
_MODEL: Final = "/@"


@dataclass(frozen=True)
class Field:
    """One argument as a form asks for it. value, default: as text; of a flag that is set, `on`.

    is_model: it names models of this hub. step: of a number, `1` or `any`.
    """

    name: str
    label: str
    about: str
    widget: Widget
    is_required: bool
    value: str
    default: str
    choices: tuple[str, ...] = ()
    is_model: bool = False
    least: float | None = None
    most: float | None = None
    step: str = "any"
    problem: str | None = None


def fields_of(
    arguments: type[JobArguments],
    given: Mapping[str, str],
    problems: Mapping[str, str] | None = None,
) -> dict[str, Field]:
    """The fields by name, in the order of the schema. given: texts that were typed before."""
    schema = arguments.model_json_schema()
    required = set(schema.get("required", ()))
    made = {}
    for name, full in schema["properties"].items():
        if name in _APART:
            continue
        prop = _resolved(full, schema)
        widget = _widget(prop, full)
        default = full.get("default")
        made[name] = Field(
            name=name,
            label=name.replace("_", " ").capitalize(),
            about=full.get("description", ""),
            widget=widget,
            is_required=name in required,
            value=given.get(name, _text(default, widget)),
            default=_text(default, widget),
            choices=_choices(prop, full) if widget == "choice" else (),
            is_model=_names_models(prop),
            least=prop.get("minimum", prop.get("exclusiveMinimum")),
            most=prop.get("maximum", prop.get("exclusiveMaximum")),
            step="1" if prop.get("type") == "integer" else "any",
            problem=(problems or {}).get(name),
        )
    return made


def texts_of(form: ImmutableMultiDict[str, Any], arguments: type[JobArguments]) -> dict[str, str]:
    """What a form or an address says, by argument. Several values of one field become lines."""
    found = {}
    for name in arguments.model_fields:
        values = [each.strip() for each in form.getlist(name) if isinstance(each, str)]
        if values:
            found[name] = "\n".join(each for each in values if each)
    return found


def read_arguments(
    arguments: type[JobArguments], given: Mapping[str, str], *, dry_run: bool
) -> tuple[JobArguments | None, dict[str, str]]:
    """(the arguments, problems by field). None if there are problems; "" is that of the whole."""
    fields = fields_of(arguments, given)
    values: dict[str, Any] = {"dry_run": dry_run}
    problems: dict[str, str] = {}
    for name, text in given.items():
        field = fields.get(name)
        if field is None:
            continue
        try:
            value = _value(field, text)
        except ValueError as error:
            problems[name] = f"This is no JSON: {error}"
            continue
        if value is not None:
            values[name] = value
    if problems:
        return None, problems
    try:
        return arguments.model_validate(values), {}
    except ValidationError as error:
        for each in error.errors():
            place = str(each["loc"][0]) if each["loc"] else ""
            problems.setdefault(place, fault_text(each))
        return None, problems


def _value(field: Field, text: str) -> Any:
    """What an argument gets; None for nothing: then its default counts."""
    if field.widget == "flag":
        return not {"on", "true"}.isdisjoint(text.split())
    if field.widget == "maybe":
        return {"true": True, "false": False}.get(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        # A list that is emptied is an empty one, where it would have something in it by itself.
        return [] if field.widget == "lines" and field.default else None
    if field.widget == "lines":
        return lines
    if field.widget == "json_lines":
        return [json.loads(line) for line in lines]
    return text


def _resolved(full: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of the values that are not null."""
    for each in full.get("anyOf", ()):
        if each.get("type") != "null":
            return _resolved(each, schema)
    reference = full.get("$ref")
    if reference is not None:
        found: Mapping[str, Any] = schema["$defs"][reference.rpartition("/")[2]]
        return found
    return full


def _widget(prop: Mapping[str, Any], full: Mapping[str, Any]) -> Widget:
    if "enum" in prop or "const" in prop:
        return "choice"
    if TEXT_FILE.items() <= full.items():
        return "area"
    kind = prop.get("type")
    if kind == "boolean":
        return "maybe" if "anyOf" in full else "flag"
    if kind in ("integer", "number"):
        return "number"
    if kind == "array":
        return "lines" if prop.get("items", {}).get("type") == "string" else "json_lines"
    return "text"


def _choices(prop: Mapping[str, Any], full: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts to choose from; an empty one stands for null."""
    found = prop["enum"] if "enum" in prop else [prop["const"]]
    return ("", *found) if "anyOf" in full else tuple(found)


def _names_models(prop: Mapping[str, Any]) -> bool:
    pattern = prop.get("pattern") or prop.get("items", {}).get("pattern") or ""
    return all(char in pattern for char in _MODEL)


def _text(default: Any, widget: Widget) -> str:
    if default is None:
        return ""
    if widget == "flag":
        return "on" if default else ""
    if widget == "maybe":
        return "true" if default else "false"
    if isinstance(default, list | tuple):
        return "\n".join(map(str, default))
    return str(default)
