"""All kinds of jobs that people may start."""

from deltahub.methods.kinds.kind import Arguments
from deltahub.methods.kinds.merge import MergeArguments

KINDS: dict[str, type[Arguments]] = {arguments.kind: arguments for arguments in (MergeArguments,)}
