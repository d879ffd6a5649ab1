"""Looks at an adapter when it was stored: writes a report, and converts it if that is automatic.

Small adapters are also compared with their base's weights, because the configuration of some says
that they are plain LoRA, and they are not.
"""

import logging
from typing import Any

from deltahub.codecs.errors import CodecError
from deltahub.methods.errors import MethodError
from deltahub.methods.kinds.convert_adapter import ConvertAdapterArguments
from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import full_name
from deltahub.registry.adapters.inspections import is_outdated
from deltahub.registry.adapters.reports import write_report
from deltahub.registry.adapters.rules import AUTO, conversion_key, rule_for
from deltahub.registry.db.models import Repository, Revision, User
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Cancelled, RegistryError
from deltahub.registry.jobs.owners import JobLost
from deltahub.registry.registry import Registry
from deltahub.registry.results.asked import Wish, ask
from deltahub.workers.context import JobContext
from deltahub.workers.jobs.adapters.inspection.stored import StoredAdapter

log = logging.getLogger(__name__)


def inspect_adapter(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """The job `inspect_adapter`: writes the report that somebody asked for and that is missing.

    payload {"revision_id"}; the result is empty.
    """
    revision_id: int = payload["revision_id"]
    reg, reader = context.registry, context.reader
    context.step("look at the adapter", lambda: look_again(reg, reader, revision_id))
    return {}


def look_again(reg: Registry, reader: FileReader, revision_id: int) -> None:
    """Do the same as inspect_stored if there is no report, or it was made without today's base."""
    with reg.db.read() as session:
        is_due = is_outdated(session, revision_id)
    if is_due:
        inspect_stored(reg, reader, revision_id)


def inspect_stored(reg: Registry, reader: FileReader, revision_id: int) -> None:
    """Write the report on a revision's adapter; nothing for a revision without one.

    What fails here fails no ingest: the report is missing then, and the log says why.
    """
    try:
        found = StoredAdapter.of(reg, reader, revision_id)
        if found is None:
            return
        report = found.report()
        told = {**report.model_dump(mode="json"), "base_digest": found.base_digest}
        write_report(reg, revision_id, report.state, told)
        if report.state == "convertible":
            _convert_if_automatic(reg, revision_id)
    except (Cancelled, JobLost):
        raise
    except (RegistryError, CodecError, MethodError) as error:
        log.warning("revision=%d: no report on its adapter: %s", revision_id, error)
    except Exception:  # an odd adapter must not keep its own files from being stored
        log.exception("revision=%d: no report on its adapter", revision_id)


def _convert_if_automatic(reg: Registry, revision_id: int) -> None:
    """Ask for the conversion in the name of whoever has pushed the adapter."""
    with reg.db.read() as session:
        revision = session.get(Revision, revision_id)
        repository = None if revision is None else session.get(Repository, revision.repository_id)
        if revision is None or repository is None or rule_for(session, repository) != AUTO:
            return
        user = None if revision.author_id is None else session.get(User, revision.author_id)
        if user is None or repository.head_id != revision_id:
            return
        caller = Caller(user.id, user.name, user.is_admin, "write")
        adapter = f"{full_name(session, repository)}@{revision.commit}"
    arguments = ConvertAdapterArguments(adapter=adapter)
    told = arguments.model_dump(mode="json")
    wish = Wish(arguments.kind, told, None, arguments.inputs(), check=arguments.check)
    try:
        ask(reg, caller, wish, idempotency_key=conversion_key(adapter))
    except Cancelled:
        raise
    except (RegistryError, MethodError) as error:
        log.warning("%s is not converted by itself: %s", adapter, error)
