"""The registry: stored contents, their places and the rules. Other packages import these types."""

from deltahub.registry.access.caller import ANONYMOUS, Caller
from deltahub.registry.db.models import File, Landing, Repository, Revision
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.versioned_cache import Memo
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings

__all__ = [
    "ANONYMOUS",
    "Caller",
    "File",
    "Landing",
    "Memo",
    "ReadSession",
    "Registry",
    "Repository",
    "Revision",
    "Settings",
]
