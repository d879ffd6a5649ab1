"""How each file of a push is sent: whole, or as frames of the tensors that the hub lacks."""

from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from deltahub.client.local.folder import LocalFile
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.push.base import BaseSet
from deltahub.client.push.encode import Choice, LocalTensor, choose
from deltahub.codecs.files.split import FilePlan

# A smaller file is sent whole, because a query costs more.
SMALL_FILE = 1 << 20
# A file is sent as frames if that saves this share of its bytes. Without a base or shared tensors
# the share is larger, because the hub's ingest does the same work without a wait here.
_MIN_SAVING = 0.05
_MIN_SAVING_STANDALONE = 0.25
_CHOICE_THREADS = 4


@dataclass(frozen=True)
class HashedFile:
    """A file of the push with its hashes. plan, tensors: only of large safetensors files."""

    file: LocalFile
    sha256: str
    plan: FilePlan | None = None
    tensors: tuple[LocalTensor, ...] = ()


@dataclass
class PushPlan:
    """Files to send whole, files that the hub rebuilds from frames, and their missing tensors."""

    whole: list[HashedFile] = field(default_factory=list)
    frames: list[HashedFile] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)


def plan_push(
    files: Iterable[HashedFile], have: Set[str], bases: Sequence[BaseSet], sources: Sources
) -> PushPlan:
    """The cheaper way to send each file, estimated from samples of its missing tensors.

    have: ids in hex of the tensors that the hub holds for the caller.
    """
    plan = PushPlan()
    chosen: dict[bytes, Choice] = {}
    planned: set[bytes] = set()
    for each in files:
        missing = _missing(each, have)
        if each.plan is None or not each.tensors:
            plan.whole.append(each)
            continue
        new = [tensor for tensor in missing.values() if tensor.tensor not in chosen]
        with ThreadPoolExecutor(_CHOICE_THREADS) as pool:
            for choice in pool.map(lambda tensor: choose(tensor, bases, sources), new):
                chosen[choice.tensor.tensor] = choice
        if not _is_worth_frames(each, missing, chosen, planned):
            plan.whole.append(each)
            continue
        plan.frames.append(each)
        for tensor in missing:
            if tensor not in planned:
                planned.add(tensor)
                plan.choices.append(chosen[tensor])
    return plan


def _missing(each: HashedFile, have: Set[str]) -> dict[bytes, LocalTensor]:
    return {tensor.tensor: tensor for tensor in each.tensors if tensor.tensor.hex() not in have}


def _is_worth_frames(
    each: HashedFile,
    missing: Mapping[bytes, LocalTensor],
    chosen: Mapping[bytes, Choice],
    planned: set[bytes],
) -> bool:
    sent = sum(chosen[tensor].expected_bytes for tensor in missing if tensor not in planned)
    is_related = len(missing) < len({tensor.tensor for tensor in each.tensors}) or any(
        chosen[tensor].base is not None for tensor in missing
    )
    saved = 1 - sent / each.file.size
    return saved >= (_MIN_SAVING if is_related else _MIN_SAVING_STANDALONE)
