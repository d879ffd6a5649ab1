"""The discriminator of a kit as one file: LoRA matrices, with PEFT's configuration beside them."""

import json
from collections.abc import Mapping
from typing import Final

from deltahub.codecs.errors import InvalidSafetensors
from deltahub.codecs.files.safetensors import LENGTH_BYTES, HeaderLimits, parse_header
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.errors import CannotTransfer

DISCRIMINATOR_FILE: Final = "discriminator.safetensors"
# In the metadata of the file's header.
_CONFIG: Final = "adapter_config"
_FORMAT: Final = "format"
_LIMITS: Final = HeaderLimits(max_header_bytes=8 << 20, max_tensors=20_000)
MOST_HEADER: Final = LENGTH_BYTES + _LIMITS.max_header_bytes
_PARTS: Final = (".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector")


def pack_discriminator(config: bytes, weights: bytes) -> bytes:
    """One file of adapter_config.json and adapter_model.safetensors, which PEFT has saved."""
    header = parse_header(weights[:MOST_HEADER], len(weights), _LIMITS)
    entries: dict[str, object] = {
        "__metadata__": {_CONFIG: json.dumps(json.loads(config), sort_keys=True), _FORMAT: "pt"}
    }
    start = header.header_length
    for each in header.tensors:
        entries[each.name] = {
            "dtype": each.dtype,
            "shape": list(each.shape),
            "data_offsets": [each.start - start, each.end - start],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants tensors at multiples of eight
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + weights[start:]


def discriminator_files(data: bytes) -> Mapping[str, bytes]:
    """The files of the folder that PEFT loads. CannotTransfer if the file is no discriminator."""
    config = check_discriminator(data[:MOST_HEADER], len(data))
    return {CONFIG_FILE: config.encode(), WEIGHTS_FILE: data}


def check_discriminator(head: bytes, size: int) -> str:
    """The text of adapter_config.json. head: the first bytes of a file of `size` bytes, with all
    of its header. CannotTransfer if it is no discriminator: the message says why.
    """
    try:
        header = parse_header(head, size, _LIMITS)
    except InvalidSafetensors as exc:
        raise CannotTransfer(f"the discriminator is no safetensors file: {exc}") from exc
    strange = next((each.name for each in header.tensors if not each.name.endswith(_PARTS)), None)
    if strange is not None or not header.tensors:
        what = "no tensors" if strange is None else f"{strange[:100]!r}"
        raise CannotTransfer(f"the discriminator is no LoRA: it has {what}")
    config = header.metadata.get(_CONFIG)
    try:
        given = json.loads(config or "null")
    except (ValueError, RecursionError):
        given = None
    if config is None or not isinstance(given, dict) or given.get("peft_type") != "LORA":
        raise CannotTransfer(
            f"the discriminator's file does not say how PEFT loads it ({_CONFIG} in its metadata):"
            " make the kit by `deltahub adapter kit`"
        )
    return config
