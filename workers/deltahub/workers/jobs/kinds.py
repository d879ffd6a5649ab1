"""The table of job kinds and their functions."""

from collections.abc import Mapping

from deltahub.methods.kinds.compare import CompareArguments
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.methods.kinds.extract_adapter import ExtractAdapterArguments
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.kinds.merge_adapter import MergeAdapterArguments
from deltahub.methods.kinds.pissa_init import PissaInitArguments
from deltahub.workers.attempts import Kind
from deltahub.workers.jobs.adapters.convert_job import convert_adapter
from deltahub.workers.jobs.adapters.extract_job import extract_adapter
from deltahub.workers.jobs.adapters.kit_job import pissa_init
from deltahub.workers.jobs.adapters.merge_job import merge_adapter
from deltahub.workers.jobs.compare.job import compare
from deltahub.workers.jobs.ingest import ingest
from deltahub.workers.jobs.merge.job import merge
from deltahub.workers.jobs.prove_recipe import prove_recipe_job
from deltahub.workers.jobs.replan import replan
from deltahub.workers.jobs.scrub import scrub
from deltahub.workers.jobs.withdraw import withdraw

KINDS: Mapping[str, Kind] = {
    CompareArguments.kind: Kind(compare, CompareArguments.steps_version, divides_itself=True),
    "ingest": Kind(ingest),
    MergeArguments.kind: Kind(merge, MergeArguments.steps_version),
    ConvertAdapterArguments.kind: Kind(convert_adapter, ConvertAdapterArguments.steps_version),
    ExtractAdapterArguments.kind: Kind(extract_adapter, ExtractAdapterArguments.steps_version),
    MergeAdapterArguments.kind: Kind(merge_adapter, MergeAdapterArguments.steps_version),
    PissaInitArguments.kind: Kind(pissa_init, PissaInitArguments.steps_version),
    "prove_recipe": Kind(prove_recipe_job),
    "replan": Kind(replan),
    "scrub": Kind(scrub),
    "withdraw": Kind(withdraw),
}
