"""What the paths of an adapter's files say: where its weights are, and what lies beside them."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from deltahub.methods.adapters.lora import WEIGHTS_FILE
from deltahub.methods.adapters.names import quoted

# Weights in pickle's format, which runs code when it is opened.
_PICKLED: Final = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
_INIT: Final = re.compile(rf"([^/]+_init)/{re.escape(WEIGHTS_FILE)}")
_WEIGHTS: Final = re.compile(r"(?i)[^/]*(adapter|lora)[^/]*\.safetensors")


@dataclass(frozen=True)
class Folder:
    """inits: folders beside the adapter's files that hold initial factors. faults: sentences."""

    inits: tuple[str, ...]
    faults: tuple[str, ...]


def look_at(files: Collection[str], title: str) -> Folder:
    """What lies in an adapter's folder. files: all paths in it, from the folder on."""
    here = sorted(path for path in files if "/" not in path)
    weights = [path for path in here if _WEIGHTS.fullmatch(path)]
    faults = []
    if len(weights) > 1:
        several = ", ".join(map(quoted, weights[:5]))
        faults.append(
            f"{title} has weights of more than one adapter in a folder ({several}), and PEFT reads"
            f" {WEIGHTS_FILE} alone: put each adapter in a folder of its own"
        )
    if WEIGHTS_FILE not in here:
        pickled = [path for path in _PICKLED if path in here]
        if pickled:
            faults.append(
                f"{title} has its weights in {pickled[0]} alone, a pickle, which the hub never"
                " opens because it may run code: save it again as safetensors (PEFT:"
                " save_pretrained with safe_serialization=True)"
            )
        else:
            faults.append(f"{title} has no {WEIGHTS_FILE}: push it, too")
    inits = sorted({match[1] for path in files if (match := _INIT.fullmatch(path))})
    return Folder(tuple(inits), tuple(faults))
