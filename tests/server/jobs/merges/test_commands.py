"""Merges by the command line: compared, and as a configuration of mergekit says."""

from pathlib import Path

import pytest

from deltahub.client import Hub
from deltahub.client.errors import NotFound
from support.merging.family import Family
from support.service.client_process import deltahub


def test_the_command_compares_and_draws(family: Family, tmp_path: Path) -> None:
    to_hub = {"DELTAHUB_URL": family.hub.url, "DELTAHUB_TOKEN": family.token}
    picture = tmp_path / "frontier.svg"
    told = deltahub(
        "merge", "compare", "--base", "ann/base", *family.models,
        "--budget", "20%", "--picture", str(picture), environment=to_hub,
    )  # fmt: skip
    assert told.status == 0, told.err
    assert "<- choice" in told.out
    assert picture.read_text().startswith("<svg")
    nameless = deltahub(
        "merge", "ties", "--base", "ann/base", *family.models, "--json", environment=to_hub
    )
    assert "needs the name" in nameless.error()["message"]
    named = ("merge", "ties", "--base", "ann/base", *family.models, "--name", "ann/drawn")
    drawn = deltahub(*named, "--picture", str(picture), environment=to_hub)
    assert drawn.status == 2
    assert "--picture" in drawn.err
    with Hub(family.hub.url, family.token) as sdk, pytest.raises(NotFound):
        sdk.repository("ann/drawn")  # refused before anything was made


def test_a_configuration_of_mergekit_is_merged(family: Family, tmp_path: Path) -> None:
    to_hub = {"DELTAHUB_URL": family.hub.url, "DELTAHUB_TOKEN": family.token}
    config = tmp_path / "config.yaml"
    models = "".join(f"  - model: {name}\n" for name in family.models)
    config.write_text(f"merge_method: emr\nbase_model: ann/base\nmodels:\n{models}")
    told = deltahub("merge", str(config), "--name", "ann/by-config", environment=to_hub)
    assert told.status == 0, told.err
    config.write_text("merge_method: slerp")
    refused = deltahub("merge", str(config), "--name", "ann/x", "--json", environment=to_hub)
    assert refused.status == 2
    assert "slerp" in refused.error()["message"]
    config.write_text(f"merge_method: linear\nmodels:\n{models}")
    named = ("merge", str(config), "--name", "ann/linear", "--dry-run")
    assert "base_model is missing" in deltahub(*named, environment=to_hub).err
    third = deltahub(*named, "ann/other", "--base", "ann/base", environment=to_hub)
    assert third.status == 2
    assert "leave ann/other out" in third.err
    estimated = deltahub(*named, "--base", "ann/base", environment=to_hub)
    assert estimated.status == 0, estimated.err
    assert "as lossless deltas" in estimated.out
