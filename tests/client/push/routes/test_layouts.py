"""A fine-tune costs in every layout about what it costs in the layout of its base."""

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download

from deltahub.client import Hub
from support.models.layouts import fp8, fused, stacked, stacked_and_transposed, trained, transposed
from support.models.model_folders import contents, write_model
from support.models.tiny_models import Tensors
from support.service.hub import RunningHub

Layout = Callable[[Tensors], Tensors]


def split(tensors: Tensors) -> Tensors:
    return tensors


@pytest.mark.parametrize(
    ("of_base", "of_tune", "scale"),
    [
        (split, fused, 4.0),
        (split, stacked, 16.0),
        (fused, split, 64.0),
        (stacked, split, 256.0),
        (split, transposed, 1024.0),
        (transposed, split, 4096.0),
        (split, stacked_and_transposed, 16384.0),
        (split, fp8, 65536.0),
    ],
)
def test_another_layout_costs_about_the_same(
    hub_server: RunningHub,
    hub: Hub,
    name: str,
    tmp_path: Path,
    other_machine: Callable[[], Path],
    of_base: Layout,
    of_tune: Layout,
    scale: float,
) -> None:
    base, same, other = f"{name}-base", f"{name}-same", f"{name}-other"
    hub.push(write_model(tmp_path / "base", of_base(trained(scale=scale))), base)
    tuned = trained(1e-5, scale)
    in_same_layout = hub.push(write_model(tmp_path / "same", of_base(tuned)), same, base=base)
    folder = write_model(tmp_path / "other", of_tune(tuned))
    # The hub keeps frames for a private model as they are sent, and makes others anew.
    pushed = hub.push(folder, other, base=base, private=scale > 64 or None)
    assert in_same_layout.sent < 0.6 * in_same_layout.size
    assert pushed.sent < 1.2 * in_same_layout.sent
    assert hub.info(other)["totals"]["own"] < 1.2 * hub.info(same)["totals"]["own"]

    other_machine()
    hub.pull(base)
    pulled = hub.pull_with_report(other, sha256=True)
    assert contents(pulled.path) == contents(folder)
    assert pulled.received < 1.2 * in_same_layout.sent
    path = hf_hub_download(
        other, "model.safetensors", endpoint=hub_server.url, token=hub_server.admin_token
    )
    assert Path(path).read_bytes() == (folder / "model.safetensors").read_bytes()
