"""Which job module does which kind of job."""

from collections.abc import Mapping

from deltahub.workers.engine import JobFunction
from deltahub.workers.ingest import ingest
from deltahub.workers.replan import replan

KINDS: Mapping[str, JobFunction] = {"ingest": ingest, "replan": replan}
