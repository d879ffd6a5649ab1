"""Models with enough weights that their file is worth a recipe, and what a pull of one tells."""

from deltahub.client.progress import Silent
from support.models import tiny_models as tiny


class Notes(Silent):
    """Keeps what a pull tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def wide(tensors: tiny.Tensors) -> tiny.Tensors:
    """Enough weights that the file is worth a recipe: the same ones, longer, under more names.

    None is equal to a tensor of the small models, which other tests push to the same hub.
    """
    return {
        f"{i}.{name}": tensor * (1 + i / 16)
        for i in range(1, 9)
        for name, tensor in tensors.items()
    }
