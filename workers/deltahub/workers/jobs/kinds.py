"""The table of job kinds and their functions."""

from collections.abc import Mapping

from deltahub.workers.attempts import JobFunction
from deltahub.workers.jobs.ingest import ingest
from deltahub.workers.jobs.prove_recipe import prove_recipe_job
from deltahub.workers.jobs.replan import replan
from deltahub.workers.jobs.scrub import scrub
from deltahub.workers.jobs.withdraw import withdraw

KINDS: Mapping[str, JobFunction] = {
    "ingest": ingest,
    "prove_recipe": prove_recipe_job,
    "replan": replan,
    "scrub": scrub,
    "withdraw": withdraw,
}
