"""An adapter that changed its base, as a plain LoRA of the base itself.

What was trained acts as W0 + s B A, where W0 = W - s B0 A0 is the changed base. On the base itself
that is W + s (B A - B0 A0), a LoRA of twice the rank: PiSSA, arXiv 2404.02948, appendix C.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.adapters.factors import Factors, Spectrum, difference, spectrum_of

# What the configuration of a plain LoRA must not say.
_DROPPED: Final = (
    "deltahub_kit", "eva_config", "corda_config", "lora_ga_config", "loftq_config", "auto_mapping",
)  # fmt: skip
# Of B0 A0: an update that is not larger is rounding.
_NOISE: Final = 1e-6
REPORT_FILE: Final = "conversion.json"


class ConversionReport(BaseModel):
    """conversion.json, beside a converted adapter. A newer hub may tell more."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = 1
    adapter: str = Field(description="What was converted, as namespace/name@commit.")
    adapter_sha256: str | None = Field(
        default=None, description="SHA-256 of its adapter_model.safetensors, as it was pushed."
    )
    base: str = Field(description="The base, as namespace/name@commit.")
    base_digest: str | None = Field(
        default=None,
        description="SHA-256 over the names and contents of the base's tensors, as the adapter's"
        " report has it.",
    )
    init: str = Field(description="The adapter's init_lora_weights.")
    source: str = Field(description="Where its initial factors come from.")
    rank: int
    trained_rank: int = Field(description="The largest rank of the adapter as it was pushed.")
    dtype: str
    n_modules: int
    error: float = Field(description="The largest relative error of an update, Frobenius norm.")
    kept: tuple[str, ...] = Field(
        description="Tensors besides A and B, which are kept as they are."
    )

    def sentences(self) -> list[str]:
        """What a person wants to know."""
        kept = f"; {len(self.kept)} other tensors are kept as they are" if self.kept else ""
        exact = "exact but for rounding" if self.error == 0 else f"within {self.error:.2g}"
        return [
            f"{self.adapter} ({self.init}, rank {self.trained_rank}) is a plain LoRA of"
            f" {self.base} now, of rank {self.rank} in {self.dtype}: {self.n_modules} updates,"
            f" {exact}{kept}",
            f"its initial factors: {self.source}",
        ]


def update_of(trained: Factors, initial: Factors, scale: float) -> Factors:
    """The factors of s (B A - B0 A0), of twice the rank; B takes s.

    They are zero if nothing was learnt but what rounding leaves, which has no low rank.
    """
    update = difference(trained, initial).scaled(scale)
    if update.norm <= _NOISE * abs(scale) * initial.norm:
        return Factors(np.zeros_like(update.down), np.zeros_like(update.up))
    return update


def needed_rank(update: Factors, error: float) -> int:
    """The smallest rank that keeps the update within a relative error."""
    return spectrum_of(update).rank_for(error)


def fitted(update: Factors, rank: int, *, is_rounded: bool) -> tuple[Factors, float]:
    """(the update as factors of this rank, its relative error).

    If the rank suffices and the dtype rounds nothing, the factors are kept as they are. is_rounded:
    they will be stored in few bits; the large parts that B A and B0 A0 share must then cancel
    before they are rounded, because the update is a small difference of them.
    """
    if rank >= update.rank and not is_rounded:
        return update.padded(rank), 0.0
    spectrum: Spectrum = spectrum_of(update)
    error = float(spectrum.errors()[rank]) if rank < len(spectrum.values) else 0.0
    return spectrum.truncated(rank), error


def plain_config(
    pushed: Mapping[str, Any], rank: int, base: tuple[str, str], modules: Collection[str]
) -> bytes:
    """adapter_config.json of the result, whose scale is 1. pushed: that of the adapter.

    base: name and commit. One rank and one alpha serve all modules, because most engines read no
    others.
    """
    config = {key: value for key, value in pushed.items() if key not in _DROPPED}
    config |= {
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_rslora": False,
        "init_lora_weights": True,
        "base_model_name_or_path": base[0],
        "revision": base[1],
    }
    if not config.get("target_modules"):
        config["target_modules"] = sorted(modules)
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
