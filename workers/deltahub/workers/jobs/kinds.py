"""The table of job kinds and their functions."""

from collections.abc import Mapping

from deltahub.methods.kinds.bases.pissa_init import PissaInitArguments
from deltahub.methods.kinds.bases.upgrade_base import UpgradeBaseArguments
from deltahub.methods.kinds.compare import CompareArguments
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.extract_adapter import ExtractAdapterArguments
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.kinds.merge_adapter import MergeAdapterArguments
from deltahub.methods.kinds.transfer_adapter import TransferAdapterArguments
from deltahub.registry.adapters.inspections import INSPECT
from deltahub.workers.attempts import Kind
from deltahub.workers.jobs.adapters.convert_job import convert_adapter
from deltahub.workers.jobs.adapters.extract_job import extract_adapter
from deltahub.workers.jobs.adapters.inspection.inspect import inspect_adapter
from deltahub.workers.jobs.adapters.kit_job import pissa_init
from deltahub.workers.jobs.adapters.merge_job import merge_adapter
from deltahub.workers.jobs.compare.job import compare
from deltahub.workers.jobs.exporting.job import export_neuzip
from deltahub.workers.jobs.ingest import ingest
from deltahub.workers.jobs.merge.job import merge
from deltahub.workers.jobs.prove_recipe import prove_recipe_job
from deltahub.workers.jobs.replan import replan
from deltahub.workers.jobs.scrub import scrub
from deltahub.workers.jobs.transfer.job import transfer_adapter
from deltahub.workers.jobs.upgrades.job import upgrade_base
from deltahub.workers.jobs.withdraw import withdraw

KINDS: Mapping[str, Kind] = {
    CompareArguments.kind: Kind(compare, CompareArguments.steps_version, divides_itself=True),
    "ingest": Kind(ingest),
    INSPECT: Kind(inspect_adapter),
    MergeArguments.kind: Kind(merge, MergeArguments.steps_version),
    ConvertAdapterArguments.kind: Kind(convert_adapter, ConvertAdapterArguments.steps_version),
    ExportNeuzipArguments.kind: Kind(export_neuzip, ExportNeuzipArguments.steps_version),
    ExtractAdapterArguments.kind: Kind(extract_adapter, ExtractAdapterArguments.steps_version),
    MergeAdapterArguments.kind: Kind(merge_adapter, MergeAdapterArguments.steps_version),
    PissaInitArguments.kind: Kind(pissa_init, PissaInitArguments.steps_version),
    TransferAdapterArguments.kind: Kind(transfer_adapter, TransferAdapterArguments.steps_version),
    "prove_recipe": Kind(prove_recipe_job),
    "replan": Kind(replan),
    "scrub": Kind(scrub),
    UpgradeBaseArguments.kind: Kind(upgrade_base, UpgradeBaseArguments.steps_version),
    "withdraw": Kind(withdraw),
}
