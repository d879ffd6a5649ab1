"""Which job module does which kind of job."""

from collections.abc import Mapping

from deltahub.workers.engine import JobFunction

KINDS: Mapping[str, JobFunction] = {}
