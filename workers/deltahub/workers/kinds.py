"""Which job module does which kind of job."""

from collections.abc import Mapping

from deltahub.workers.engine import JobFunction
from deltahub.workers.ingest import ingest
from deltahub.workers.prove_recipe import prove_recipe
from deltahub.workers.replan import replan

KINDS: Mapping[str, JobFunction] = {
    "ingest": ingest,
    "prove_recipe": prove_recipe,
    "replan": replan,
}
