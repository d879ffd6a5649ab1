"""All pages of a model, in the order in which their routes are tried."""

from typing import Final

from deltahub.server.web.model import (
    adapter,
    blob,
    commits,
    files,
    lineage,
    overview,
    refs,
    settings,
    tensors,
    use,
)
from deltahub.server.web.model.comparing import page as comparing

MODULES: Final = (
    overview, files, blob, commits, refs, lineage, use, tensors, adapter, settings, comparing,
)  # fmt: skip
