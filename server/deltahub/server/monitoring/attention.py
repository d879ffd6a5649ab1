"""What an administrator should look at, and what to do about it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from deltahub.registry.maintenance.gc.plan import Plan
from deltahub.registry.maintenance.scrub.coverage import Coverage
from deltahub.registry.reports.hub_totals import HubTotals
from deltahub.registry.reports.lists.storage import NamespaceRow
from deltahub.registry.sizes import human_size
from deltahub.server.monitoring.of_hub import Condition

# A disk with less free space than this share, or these bytes, is nearly full.
_DISK_SHARE: Final = 0.1
_DISK_BYTES: Final = 5 << 30
_LONG_WAIT: Final = timedelta(hours=1)
# A namespace that uses so much of a limit will soon be refused something.
NEAR_LIMIT: Final = 0.9
# Garbage below this share of the store is not worth a word.
_GARBAGE_SHARE: Final = 0.1


@dataclass(frozen=True)
class Attention:
    """level: danger, something is broken; warning, something will be; info, something is better
    done. advice: what to do. page: where to see more.
    """

    level: Literal["danger", "warning", "info"]
    title: str
    advice: str
    page: str | None = None


@dataclass(frozen=True)
class Known:
    """What is known of a hub. None: it could not be found out in time."""

    condition: Condition | None
    totals: HubTotals | None
    coverage: Coverage | None
    plan: Plan | None
    namespaces: Sequence[NamespaceRow] | None  # those near a limit
    n_failed: int  # jobs of the last week
    n_upgrades: int = 0  # that wait for a decision


_WAY_OUT: Final = {
    "database": "Look into the log of the server, and at the database's own.",
    "store": "Look into the log of the server. Until the store answers, nothing is read or pushed.",
    "worker": "Start one with `deltahub worker`, or look into its log. Pushes wait until then.",
}


def find(known: Known) -> list[Attention]:
    """All of it, the worst first."""
    found = [*_parts(known), *_damage(known), *_jobs(known), *_room(known), *_proofs(known)]
    found += _upgrades(known)
    order = ("danger", "warning", "info")
    return sorted(found, key=lambda each: order.index(each.level))


def _parts(known: Known) -> Iterator[Attention]:
    condition = known.condition
    if condition is None:
        yield Attention("danger", "The database does not answer", _WAY_OUT["database"])
        return
    for problem in condition.problems:
        title = problem.message[:1].upper() + problem.message[1:]
        yield Attention("danger", title, _WAY_OUT[problem.part])
    share = condition.disk_free / max(condition.disk_size, 1)
    if share < _DISK_SHARE or condition.disk_free < _DISK_BYTES:
        yield Attention(
            "warning",
            f"The data folder's disk has {human_size(condition.disk_free)} left, {share:.0%} of it",
            "Collect garbage with `deltahub gc --apply`, make the disk larger, or move the objects"
            " into a bucket with `deltahub store copy`. A full disk refuses pushes.",
            "/-/admin/storage",
        )


def _damage(known: Known) -> Iterator[Attention]:
    n_findings = sum(known.totals.findings.values()) if known.totals else 0
    if n_findings:
        noun = "object is" if n_findings == 1 else "objects are"
        yield Attention(
            "danger",
            f"{n_findings} stored {noun} damaged or lost",
            "The list says which files need them. Push these files again, which restores them, or"
            " run `deltahub fsck --repair`.",
            "/-/admin/storage/findings",
        )


def _jobs(known: Known) -> Iterator[Attention]:
    if known.n_failed:
        noun = "job has" if known.n_failed == 1 else "jobs have"
        yield Attention(
            "warning",
            f"{known.n_failed} {noun} failed in the last 7 days",
            "Each job says why. One that people asked for can be run again from its page; a push"
            " is repeated by pushing again.",
            "/-/admin/jobs?state=failed",
        )
    now = datetime.now(UTC)
    waiting = [each for each in known.totals.jobs if each.state == "queued"] if known.totals else []
    # A scrub waits for all other jobs: that is no sign of too few workers.
    oldest = min((each.oldest_at for each in waiting if each.kind != "scrub"), default=now)
    if now - oldest > _LONG_WAIT:
        hours = (now - oldest) / timedelta(hours=1)
        yield Attention(
            "warning",
            f"A job has waited for {hours:.0f} h",
            "Raise DELTAHUB_WORKER_CONCURRENCY or DELTAHUB_WORKER_COMPUTE_CONCURRENCY, or start"
            " another worker. The job's page says what it waits for.",
            "/-/admin/jobs?state=queued&sort=created",
        )


def _upgrades(known: Known) -> Iterator[Attention]:
    if known.n_upgrades:
        are = "upgrade of a base waits" if known.n_upgrades == 1 else "upgrades of bases wait"
        yield Attention(
            "info",
            f"{known.n_upgrades} {are} for a decision",
            "Whoever may write to the adapters' namespaces approves or rejects their moves.",
            "/-/upgrades?state=proposed",
        )


def _room(known: Known) -> Iterator[Attention]:
    for row in known.namespaces or ():
        yield Attention(
            "warning",
            f"{row.name} uses {row.share or 0:.0%} of what it may use",
            "Pushes beyond the limit are refused. Raise the limit, or ask its members to delete or"
            " prune models.",
            f"/-/admin/storage/namespaces?words={row.name}",
        )
    if known.plan is None or known.totals is None:
        return
    if known.plan.doubts:
        yield Attention(
            "warning",
            "Garbage cannot be collected",
            f"{known.plan.doubts[0][:1].upper()}{known.plan.doubts[0][1:]}.",
            "/-/admin/storage",
        )
    garbage = known.plan.freed_bytes + known.plan.later_bytes
    if garbage > _GARBAGE_SHARE * max(sum(known.totals.stored_bytes.values()), 1):
        yield Attention(
            "info",
            f"{human_size(garbage)} of the store are garbage",
            "Run `deltahub gc --apply` on the hub's machine; it may run beside the hub.",
            "/-/admin/storage",
        )


def _proofs(known: Known) -> Iterator[Attention]:
    coverage = known.coverage
    if coverage is None or not coverage.n_bytes:
        return
    if not coverage.scrub_days:
        yield Attention(
            "info",
            "The hub never proves its stored bytes",
            "Set DELTAHUB_SCRUB_DAYS, or run `deltahub scrub` from time to time: damage that is"
            " found early can be repaired from where the bytes came from.",
            "/-/admin/storage",
        )
    elif coverage.overdue_bytes:
        yield Attention(
            "warning",
            f"{human_size(coverage.overdue_bytes)} were not proved for"
            f" {coverage.scrub_days:g} days",
            "A worker proves them while it has no other job. Let one run all the time, raise"
            " DELTAHUB_SCRUB_MB_PER_S, or run `deltahub scrub`.",
            "/-/admin/storage",
        )
