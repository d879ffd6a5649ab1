"""All pages of a model, in the order in which their routes are tried."""

from typing import Final

from deltahub.server.web.model import (
    adapter,
    blob,
    files,
    lineage,
    overview,
    settings,
    tensors,
    use,
)
from deltahub.server.web.model.comparing import page as comparing
from deltahub.server.web.model.history import commits, refs

MODULES: Final = (
    overview, files, blob, commits, refs, lineage, use, tensors, adapter, settings, comparing,
)  # fmt: skip
