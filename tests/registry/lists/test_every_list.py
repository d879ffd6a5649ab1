"""Lists of models by every caller, namespace, word, tag and order."""

from pathlib import Path

from support.registry.listing import check_lists, make_models
from support.registry.opened import opened_registry


def test_every_list_has_what_its_caller_may_read_in_order(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        made, callers = make_models(reg)
        assert check_lists(reg, made, callers) > 1000
