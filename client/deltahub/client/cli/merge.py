"""`deltahub merge`."""

from deltahub.client.cli.asked import command_of
from deltahub.methods.kinds.merge import MergeArguments

merge = command_of(MergeArguments, ("method", "models"))
