"""Files of a model in a folder, from which libraries load it."""

from pathlib import Path
from typing import Final

from deltahub.registry.db.models import File
from deltahub.registry.results.inputs import MAX_SMALL_FILE, InputFile, InputModel
from deltahub.workers.compute.context import ComputeContext

_SMALL: Final = (".json", ".txt", ".model")
_WEIGHTS: Final = ".safetensors"


def small_files(model: InputModel) -> list[InputFile]:
    """Configurations and tokenizers."""
    return [
        file for file in model.files if file.size <= MAX_SMALL_FILE and file.path.endswith(_SMALL)
    ]


def weight_files(model: InputModel) -> list[InputFile]:
    return [file for file in model.files if file.path.endswith(_WEIGHTS)]


def write_file(context: ComputeContext, row: int, path: Path) -> None:
    """Write the file of a row."""
    with context.registry.db.read() as session:
        file = session.get_one(File, row)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        for piece in context.reader.stream_pieces(file, 0, file.size):
            out.write(piece)
