"""The one base that is in memory, with its adapters. The other one is unloaded first."""

import gc
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from deltahub.codecs.errors import CodecError
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.errors import CannotExport, CannotMerge, CannotTransfer
from deltahub.methods.evaluation.exact_match import device_of
from deltahub.registry.errors import Unavailable
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.compute.time_limit import time_limit
from deltahub.workers.jobs.model_folder import small_files, weight_files, write_file
from deltahub.workers.jobs.transfer.inputs import TransferInputs

Which = Literal["source", "target"]
# Longest time to put an adapter's modules into a base, whose names its patterns are matched with.
_LOADING_S: Final = 300.0
_MEMO: Final = "resident"


@dataclass
class Resident:
    """A loaded base. names: of the adapters that it has."""

    which: Which
    model: Any
    tokenizer: Any
    names: set[str] = field(default_factory=set)

    def add(self, context: ComputeContext, name: str, files: Mapping[str, bytes | int]) -> None:
        """Load an adapter. files: contents, or rows of files. CannotTransfer if PEFT cannot."""
        from deltahub.methods.transfer.models.adapters import load_adapter

        if name in self.names:
            return
        folder = context.folder() / "adapter"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # After a kill, ComputeProcess deletes the folder before the job goes on.
        try:
            for path, content in files.items():
                if isinstance(content, int):
                    write_file(context, content, folder / path)
                else:
                    (folder / path).write_bytes(content)
            with time_limit(_LOADING_S, "matching the patterns of an adapter"):
                self.model = load_adapter(self.model, folder, name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.names.add(name)


def resident(
    context: ComputeContext, inputs: TransferInputs, which: Which, step: Mapping[str, Any]
) -> Resident:
    """The base in memory, as it was left by an earlier step of this process, or loaded.

    step: arguments of the step: `device` where the job's models run, "cpu" or "cuda", and whether
    the source is held `compressed`. Unavailable, which begins the job again, without a GPU where it
    began on one: a GPU rounds in another way.
    """
    known = context.memo.get(_MEMO)
    if isinstance(known, Resident) and known.which == which:
        return known
    del known
    unload(context)
    device = _device_again(context, inputs.arguments.device, step["device"])
    is_compressed = which == "source" and step["compressed"]
    found = _loaded(context, inputs, which, device, is_compressed)
    context.memo[_MEMO] = found
    return found


def unload(context: ComputeContext) -> None:
    """Free the memory of the base that is loaded, if any."""
    if context.memo.pop(_MEMO, None) is None:
        return
    gc.collect()
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _loaded(
    context: ComputeContext,
    inputs: TransferInputs,
    which: Which,
    device: str,
    is_compressed: bool,
) -> Resident:
    import torch
    from transformers.utils import logging

    from deltahub.methods.transfer.models.adapters import load_base, load_tokenizer

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(context.threads)
    model = inputs.source if which == "source" else inputs.target
    folder = context.folder() / "base"
    shutil.rmtree(folder, ignore_errors=True)
    files = [*small_files(model), *weight_files(model)]
    require_room(context.registry, sum(file.size for file in files), "a base to be run needs")
    for i, file in enumerate(files):
        context.report(f"write {model.name} out", i, len(files))
        write_file(context, file.row, folder / file.path)
    context.report(f"load {model.name}", 0, 1)
    if is_compressed:
        return Resident(which, _compressed(context, folder, device), load_tokenizer(folder))
    return Resident(which, *load_base(folder, device))


def _compressed(context: ComputeContext, folder: Path, device: str) -> Any:
    """The model of a folder, whose matrices stay compressed: it computes the same bits. It is never
    in memory as a whole, because each weight is compressed as it is read.
    """
    from deltahub.methods.inference.family import Family

    try:
        return Family(folder, {}, threads=context.threads, device=device).model
    except (CannotExport, CodecError) as error:
        raise CannotTransfer(
            f"the old base cannot be held compressed: {error}. Ask for the move without"
            " --compressed"
        ) from error


def adapter_files(config: bytes, row: int) -> dict[str, bytes | int]:
    """The files of an adapter, for Resident.add. row: of its weights."""
    return {CONFIG_FILE: config, WEIGHTS_FILE: row}


def scratch(context: ComputeContext, name: str) -> Path:
    """An empty folder of the step."""
    folder = context.folder() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _device_again(context: ComputeContext, asked: str, began_on: str) -> str:
    if began_on == "cpu":
        return "cpu"
    try:
        device = device_of(context.device(asked))
    except CannotMerge as error:
        raise CannotTransfer(str(error)) from error
    if device == "cpu":
        raise Unavailable("the models of this job ran on a GPU, and this worker has none")
    return device
