"""Looks at an adapter in a folder of this machine, without a hub."""

from collections.abc import Iterable
from pathlib import Path

from deltahub.client.errors import InvalidArgument
from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.safetensors import LENGTH_BYTES, header_length, parse_header
from deltahub.methods.adapters.inspection.report import AdapterReport, BaseAtHand, inspect_adapter
from deltahub.methods.adapters.inspection.shapes import TensorShape
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.errors import MethodError


def lint_folder(folder: Path, base: Path | None = None) -> AdapterReport:
    """The report on the adapter of a folder. base: a folder with the model that it belongs to.

    InvalidArgument if the folder has no adapter_config.json, or a file cannot be read.
    """
    config = folder / CONFIG_FILE
    if not config.is_file():
        raise InvalidArgument(f"{folder} has no {CONFIG_FILE}: it is no adapter as PEFT saves it")
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    own = folder / WEIGHTS_FILE
    at_hand = None
    if base is not None:
        at_hand = BaseAtHand(str(base), _shapes(sorted(base.glob("*.safetensors"))))
    try:
        tensors = _shapes([own] if own.is_file() else [])
        return inspect_adapter(config.read_bytes(), tensors, paths, at_hand, str(folder))
    except (MethodError, OSError) as exc:
        raise InvalidArgument(str(exc)) from exc


def _shapes(files: Iterable[Path]) -> dict[str, TensorShape]:
    found = {}
    for path in files:
        size = path.stat().st_size
        try:
            with path.open("rb") as file:
                head = file.read(min(LENGTH_BYTES, size))
                head += file.read(header_length(head, size) - LENGTH_BYTES)
            parsed = parse_header(head, size)
        except (CodecError, OSError) as exc:
            raise InvalidArgument(f"{path} cannot be read: {exc}") from exc
        for tensor in parsed.tensors:
            found[tensor.name] = TensorShape(tensor.dtype, tuple(tensor.shape))
    return found
