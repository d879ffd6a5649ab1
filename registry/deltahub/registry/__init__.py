"""What is stored and where: the rules, behind the HTTP layer and the jobs."""

from deltahub.registry.permissions import ANONYMOUS, Caller
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings

__all__ = ["ANONYMOUS", "Caller", "Registry", "Settings"]
