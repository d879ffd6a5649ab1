"""All kinds of jobs that people may start."""

from deltahub.methods.kinds.compare import CompareArguments
from deltahub.methods.kinds.kind import JobArguments
from deltahub.methods.kinds.merge import MergeArguments

KINDS: dict[str, type[JobArguments]] = {
    arguments.kind: arguments for arguments in (CompareArguments, MergeArguments)
}
