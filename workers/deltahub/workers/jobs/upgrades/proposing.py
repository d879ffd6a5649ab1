"""Asks for the plan of an upgrade that a push proposes, after its ingest."""

import logging
from hashlib import sha256

from deltahub.codecs.errors import CodecError
from deltahub.methods.errors import MethodError
from deltahub.methods.kinds.bases.upgrade_base import UpgradeBaseArguments
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Cancelled, RegistryError
from deltahub.registry.jobs.owners import JobLost
from deltahub.registry.registry import Registry
from deltahub.registry.results.asked import Wish, ask
from deltahub.registry.upgrades.proposals import Proposal, find_proposals

log = logging.getLogger(__name__)


def propose_upgrades(reg: Registry, reader: FileReader, revision_id: int) -> None:
    """Ask for a plan of each upgrade that a revision proposes, in the name of its pusher.

    What fails here fails no ingest: nothing is proposed then, and the log says why.
    """
    try:
        for proposal in find_proposals(reg, reader, revision_id):
            _ask(reg, proposal)
    except (Cancelled, JobLost):
        raise
    except (RegistryError, CodecError, MethodError) as error:
        log.warning("revision=%d: no upgrade is proposed: %s", revision_id, error)
    except Exception:  # an odd card must not keep its own files from being stored
        log.exception("revision=%d: no upgrade is proposed", revision_id)


def _ask(reg: Registry, proposal: Proposal) -> None:
    arguments = UpgradeBaseArguments(
        base=proposal.new,
        from_base=proposal.old,
        policy="auto" if proposal.policy == "auto" else "ask",
        source=proposal.source,
    )
    told = arguments.model_dump(mode="json")
    wish = Wish(arguments.kind, told, None, arguments.inputs(), None, arguments.only_reads)
    # An ingest that runs twice proposes once.
    key = f"upgrade {sha256(f'{proposal.old} {proposal.new}'.encode()).hexdigest()[:48]}"
    try:
        ask(reg, proposal.caller, wish, idempotency_key=key)
    except Cancelled:
        raise
    except RegistryError as error:
        log.warning("an upgrade of %s is not proposed: %s", proposal.old, error)
