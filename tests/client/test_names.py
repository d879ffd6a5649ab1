"""The client refuses the names that the hub would refuse, and no others."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltahub.client.errors import InvalidArgument
from deltahub.client.names import is_branch, is_name, repository_path
from deltahub.registry.errors import InvalidName
from deltahub.registry.names import (
    MAX_NAME,
    MAX_REF,
    validate_name,
    validate_ref,
)


@given(st.text("aZ9._-/ é\n", max_size=8) | st.text(max_size=4))
@example("a" * MAX_NAME)
@example("a" * (MAX_NAME + 1))
@example("a.git")
@example("a.lock")
@example("a..b")
def test_client_and_hub_have_the_same_rule_for_a_name(name: str) -> None:
    try:
        validate_name(name, "repository")
    except InvalidName:
        assert not is_name(name)
    else:
        assert is_name(name)


@given(st.text("af09./-+ é\n", max_size=8) | st.text(max_size=4))
@example("a" * MAX_REF)
@example("z" * (MAX_REF + 1))
@example("a" * 40)
@example("a.lock")
@example("aux.c/x")
@example("HEAD")
@example("refs/heads/main")
def test_client_and_hub_have_the_same_rule_for_a_branch(name: str) -> None:
    try:
        validate_ref(name)
    except InvalidName:
        assert not is_branch(name)
    else:
        assert is_branch(name)


@pytest.mark.parametrize("name", ["", "a", "a/", "/a", "a/b/c", "a/..", "a b/c", "a/b?x", "../a"])
def test_what_is_no_repository_has_no_path(name: str) -> None:
    with pytest.raises(InvalidArgument, match="NAMESPACE/NAME"):
        repository_path(name)
