"""`deltahub info`: how a revision is stored."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from deltahub.client.cli.output import Output, hub_options, split_revision, table
from deltahub.client.errors import HubError
from deltahub.client.hub import Hub
from deltahub.client.progress import human_size

_NUMBERS = frozenset({1, 2, 3, 4})
# The status of a declared base, as `info` prints it.
_STATUS = {
    "resolved": "resolved",
    "absent": "absent: there is none that you may read; used once it arrives",
    "no_safetensors": "not used so far: it has no safetensors file; used once one arrives",
    "unused": "not used: nothing here is coded against its tensors",
}


@click.command()
@click.argument("name", metavar="NAMESPACE/NAME[@REVISION]")
@click.option("--revision", help="A branch, tag or commit; by default main.")
@click.option("--brief", is_flag=True, help="Leave the tensors out.")
@hub_options
def info(name: str, revision: str | None, brief: bool, hub: Hub, output: Output) -> None:
    """Show files and tensors of a revision: codec and bytes of each, and its base.

    own: bytes stored for this repository alone; shared: stored once, other repositories use them
    too; base: bytes of tensors outside this revision that its differences need: of other models,
    and of other revisions of this one.
    """
    name, revision = split_revision(name, revision)
    found = hub.info(name, revision, brief=brief)
    if brief:
        found = {**found, "files": [_without_tensors(file) for file in found.get("files", [])]}
    adapter = None
    if any(file.get("path") == "adapter_config.json" for file in found.get("files", [])):
        with contextlib.suppress(HubError):  # an older hub, or one that has not looked at it yet
            adapter = hub.adapter_report(name, revision)
    shown = found if adapter is None else {**found, "adapter": adapter}
    output.result(shown, *_describe(name, found), *_describe_adapter(adapter))


def _describe_adapter(adapter: Mapping[str, Any] | None) -> list[str]:
    if adapter is None:
        return []
    lines = ["", f"adapter: {adapter.get('state')}, init_lora_weights {adapter.get('init')}"]
    served = [f"{each['engine']}: {each['verdict']}" for each in adapter.get("verdicts") or []]
    return [
        *lines,
        *served,
        *([f"way out: {adapter['way_out']}"] if adapter.get("way_out") else []),
    ]


def _describe(name: str, found: Mapping[str, Any]) -> list[str]:
    lines = [f"{name}@{found.get('commit', '')}"]
    lines += _describe_base(found.get("base") or {}, found.get("files") or [])
    rows = [["file", "size", "own", "shared", "base", "kind"]]
    for file in found.get("files", []):
        rows.append([str(file["path"]), *_sizes(file["size"], file.get("stored")), _kind(file)])
    rows.append(["total", *_totals(found.get("totals") or {}), ""])
    lines += ["", *table(rows, right=_NUMBERS)]
    if usage := found.get("usage"):
        stored, logical = human_size(usage["stored_bytes"]), human_size(usage["logical_bytes"])
        lines += ["", f"all revisions: {stored} stored, {logical} of files"]
    for file in found.get("files", []):
        if file.get("note"):
            lines += ["", f"{file['path']}: {file['note']}"]
        if file.get("tensors"):
            lines += ["", str(file["path"]), *_tensors(file["tensors"])]
    return lines


def _without_tensors(file: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in file.items() if key != "tensors"}


def _describe_base(base: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for the declared base, then one for each measured base."""
    declared = base.get("declared")
    lines = [f"base declared: {declared}{_status_of(base)}" if declared else "base declared: none"]
    measured = base.get("measured") or []
    for each in measured:
        name = f"{each.get('repository')}@{str(each.get('commit') or '')[:12]}"
        copied = each.get("identical") or 0.0
        how = f", {_share(copied)} as identical copies" if copied else ""
        lines.append(f"base measured: {name}: {_share(each.get('share'))} of the weights{how}")
    if not measured:
        lines.append(f"base measured: none{_why_unmeasured(base, files)}")
    return lines


def _status_of(base: Mapping[str, Any]) -> str:
    status = str(base.get("declared_status") or "")
    text = _STATUS.get(status, status)
    if base.get("is_gone"):
        text += f"; that revision is gone, {str(base.get('commit') or '')[:12]} stands for it"
    if status == "resolved" and base.get("declared_share"):
        text += f": {_share(base['declared_share'])} of the weights"
    return f" ({text})" if text else ""


def _share(share: object) -> str:
    """The share of weight bytes that are equal to the base's or stored as deltas of it."""
    return f"{share:.0%}" if isinstance(share, int | float) else "an unknown part"


def _why_unmeasured(base: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> str:
    if any(file.get("state") != "ingested" for file in files):
        return " yet: the hub has not stored every file"
    if not any(file.get("kind") == "safetensors" for file in files):
        return ": there are no safetensors files here"
    if base.get("pending_job_id"):
        return " yet: the hub is still at work on this revision"
    if any((file.get("stored") or {}).get("base") for file in files):
        if base.get("is_own_history"):
            return ": its weights are differences from other revisions of this repository"
        return (
            ": its weights are differences from a model or revision that is gone, or that you may"
            " not read"
        )
    return ": the weights are no copy of an older model's, nor stored as a difference from another"


def _tensors(tensors: list[Mapping[str, Any]]) -> list[str]:
    rows = [["  tensor", "size", "stored", "depth", "codec", "dtype", "shape"]]
    for each in tensors:
        shape = "x".join(str(size) for size in each.get("shape") or ()) or "scalar"
        depth = each.get("base_depth")
        rows.append(
            [
                f"  {each.get('name') or '(bytes)'}",
                human_size(each["size"]),
                "shared" if each.get("shared") else human_size(each.get("stored") or 0),
                "" if depth is None else str(depth),
                str(each.get("codec") or ""),
                str(each.get("dtype") or ""),
                shape,
            ]
        )
    return table(rows, right=frozenset({1, 2, 3}))


def _kind(file: Mapping[str, Any]) -> str:
    if file.get("state") == "lost":
        return "lost"
    return str(file.get("kind") or file.get("state") or "")


def _sizes(size: int, stored: Mapping[str, int] | None) -> list[str]:
    if not stored:
        return [human_size(size), "-", "-", "-"]
    return [human_size(size), *(human_size(stored.get(k) or 0) for k in ("own", "shared", "base"))]


def _totals(totals: Mapping[str, int]) -> list[str]:
    return [human_size(totals.get(key) or 0) for key in ("size", "own", "shared", "base")]
