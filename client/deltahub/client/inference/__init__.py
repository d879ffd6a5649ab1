"""Models whose weights stay compressed in memory while they run."""

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as exc:
    from deltahub.codecs.errors import how_to_install

    raise ImportError(f"{__name__} needs {exc.name}: {how_to_install('demo')}") from exc

from deltahub.client.inference.load import load, load_family
from deltahub.codecs.exports.file import map_export
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import compress_, load_into, resident_bytes

__all__ = [
    "Family",
    "compress_",
    "load",
    "load_family",
    "load_into",
    "map_export",
    "resident_bytes",
]
