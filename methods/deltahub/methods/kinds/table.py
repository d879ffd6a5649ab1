"""All kinds of jobs that people may start."""

from deltahub.methods.kinds.bases.pissa_init import PissaInitArguments
from deltahub.methods.kinds.bases.upgrade_base import UpgradeBaseArguments
from deltahub.methods.kinds.compare import CompareArguments
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.extract_adapter import ExtractAdapterArguments
from deltahub.methods.kinds.kind import JobArguments
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.kinds.merge_adapter import MergeAdapterArguments
from deltahub.methods.kinds.transfer_adapter import TransferAdapterArguments

KINDS: dict[str, type[JobArguments]] = {
    arguments.kind: arguments
    for arguments in (
        CompareArguments,
        ConvertAdapterArguments,
        ExportNeuzipArguments,
        ExtractAdapterArguments,
        MergeAdapterArguments,
        MergeArguments,
        PissaInitArguments,
        TransferAdapterArguments,
        UpgradeBaseArguments,
    )
}
