"""What the hub knows before a job begins is said at once, and costs no failed job."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from deltahub.client import Hub, InvalidRequest
from deltahub.client.errors import Conflict, Forbidden
from deltahub.methods.kinds.table import KINDS
from deltahub.registry.access.caller import Caller
from deltahub.registry.db.models import Repository, Revision, User
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.results.asked import Wish, ask
from deltahub.registry.results.known import KnownModel
from support.adapters.place import Place
from support.adapters.tuning import trained_adapter
from support.service.client_process import deltahub


@pytest.fixture(scope="module")
def adapters(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("refused")
    kinds: Mapping[str, Mapping[str, Any]] = {
        "plain": {}, "changed": {"init_lora_weights": "pissa"},
        "lost": {"init_lora_weights": "pissa_niter_4"},
    }  # fmt: skip
    for name, options in kinds.items():
        trained_adapter(place.base, root / name, **options)
        place.ann.push(root / name, f"ann/refused-{name}", base="ann/base")
        place.report_of(f"ann/refused-{name}")
    trained_adapter(place.base, root / "orphan")
    place.ann.push(root / "orphan", "ann/refused-orphan", base="ann/nobody")
    return place


def n_jobs(place: Place) -> int:
    with place.hub.registry.db.read() as session:
        query = select(func.count()).select_from(Job).where(Job.kind.in_(KINDS))
        return session.scalar(query) or 0


@pytest.mark.parametrize(
    ("ask_hub", "error", "said"),
    [
        (lambda hub: hub.pissa_init("ann/base", rank=33), InvalidRequest, "choose at most 32"),
        (lambda hub: hub.pissa_init("ann/refused-plain"), InvalidRequest, "is an adapter"),
        (lambda hub: hub.pissa_init("ann/base", name="ann/base"), Conflict, "ann/base"),
        (lambda hub: hub.convert_adapter("ann/refused-plain"), InvalidRequest, "plain LoRA alre"),
        (lambda hub: hub.convert_adapter("ann/base"), InvalidRequest, "no adapter_config.json"),
        (lambda hub: hub.convert_adapter("ann/refused-lost"), InvalidRequest, "by --init"),
        (
            lambda hub: hub.convert_adapter("ann/refused-changed", rank=9),
            InvalidRequest,
            "rank 8 at most",
        ),
        (lambda hub: hub.merge_adapter("ann/refused-orphan"), InvalidRequest, "names ann/nobody"),
        (
            lambda hub: hub.merge_adapter("ann/refused-changed"),
            InvalidRequest,
            "deltahub adapter convert",
        ),
        (
            lambda hub: hub.extract_adapter("ann/refused-plain", "ann/x"),
            InvalidRequest,
            "is an adapter already",
        ),
        (lambda hub: hub.extract_adapter("ann/base", "ann/x"), InvalidRequest, "names no base"),
        (
            lambda hub: hub.extract_adapter("ann/base", "ann/base", base="ann/base"),
            Conflict,
            "ann/base",
        ),
    ],
)
def test_it_is_refused_at_once(
    adapters: Place, ask_hub: Callable[[Hub], Any], error: type[Exception], said: str
) -> None:
    before = n_jobs(adapters)
    with pytest.raises(error, match=said):
        ask_hub(adapters.ann)
    assert n_jobs(adapters) == before


def test_whoever_may_not_write_is_told_at_once(adapters: Place) -> None:
    before = n_jobs(adapters)
    with Hub(adapters.hub.url, adapters.hub.user("mel")) as mel:
        for asked in (mel.convert_adapter, mel.merge_adapter):
            with pytest.raises(Forbidden, match="mel needs the role write"):
                asked("ann/refused-changed")
        with pytest.raises(Forbidden, match="mel"):
            mel.extract_adapter("ann/base", "ann/of-mel", base="ann/base")
    assert n_jobs(adapters) == before


def test_the_command_says_so_and_fails(adapters: Place) -> None:
    done = deltahub("adapter", "convert", "ann/refused-plain", environment=adapters.environment)
    assert done.status != 0
    assert "is a plain LoRA already" in done.err
    assert "job" not in done.err


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("pissa_init", {"base": "ann/base", "rank": 33}, "rank 33 does not fit"),
        ("convert_adapter", {"adapter": "ann/refused-plain"}, "plain LoRA already"),
        ("convert_adapter", {"adapter": "ann/refused-lost"}, "initial factors"),
        ("merge_adapter", {"adapter": "ann/refused-orphan"}, "names ann/nobody as its base"),
        ("merge_adapter", {"adapter": "ann/refused-changed"}, "deltahub adapter convert"),
        ("extract_adapter", {"model": "ann/base", "name": "ann/x"}, "names no base"),
    ],
)
def test_the_job_checks_again(
    adapters: Place, kind: str, arguments: dict[str, Any], said: str
) -> None:
    registry = adapters.hub.registry
    with registry.db.read() as session:
        ann = session.scalars(select(User).where(User.name == "ann")).one()
    given = KINDS[kind].model_validate(arguments)
    name = getattr(given, "name", None)
    # As if what is wrong had come about after the request.
    wish = Wish(kind, given.model_dump(mode="json"), name, given.inputs())
    job = ask(registry, Caller(ann.id, "ann", is_admin=False, scope="write"), wish)
    over = adapters.hub.wait_for_job(job.id, adapters.token)
    assert over["state"] == "failed"
    assert said in over["error"]["message"]


def test_the_same_request_gets_its_job_though_it_would_be_refused_now(
    place: Place, tmp_path: Path
) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/twice", base="ann/base")
    first = place.ann.convert_adapter("ann/twice", idempotency_key="once").wait()
    place.report_of("ann/twice")  # of the plain LoRA that came of it
    again = place.ann.convert_adapter("ann/twice", idempotency_key="once")
    assert again.job.id == first.id


def test_a_base_is_not_named_to_those_who_may_not_read_it(place: Place, tmp_path: Path) -> None:
    place.ann.push(place.base, "ann/covert", private=True)
    trained_adapter(place.base, tmp_path / "a")
    config = tmp_path / "a" / "adapter_config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "base_model_name_or_path": "", "r": 5}))
    (tmp_path / "a" / "README.md").unlink(missing_ok=True)
    place.ann.push(tmp_path / "a", "ann/lora", base="ann/covert", private=True)
    place.ann.push(place.base, "ann/tuned", base="ann/covert", private=True)
    assert "ann/covert" in json.dumps(place.report_of("ann/lora"))
    for name in ("ann/lora", "ann/tuned"):
        place.ann.set_private(name, private=False)
    token = place.hub.user("zoe")
    with (
        Hub(place.hub.url, token) as hub_of_zoe,
        pytest.raises(InvalidRequest, match="names a base that you may not read") as refused,
    ):
        hub_of_zoe.extract_adapter("ann/tuned", "zoe/x")
    assert "covert" not in str(refused.value)
    registry = place.hub.registry
    with registry.db.read() as session:
        row = session.scalars(select(User).where(User.name == "zoe")).one()
        zoe = Caller(row.id, "zoe", is_admin=False, scope="write")
        lora = session.scalars(
            select(Revision)
            .join(Repository, Repository.head_id == Revision.id)
            .where(Repository.name == "lora")
        ).one()
        known = KnownModel.load(session, registry, zoe, lora)
    assert known.report is not None
    assert "covert" not in json.dumps(known.report)
    given = KINDS["extract_adapter"].model_validate({"model": "ann/tuned", "name": "zoe/x"})
    wish = Wish("extract_adapter", given.model_dump(mode="json"), "zoe/x", given.inputs())
    over = place.hub.wait_for_job(ask(registry, zoe, wish).id, token)
    assert "names a base that you may not read" in over["error"]["message"]
    assert "covert" not in over["error"]["message"]
