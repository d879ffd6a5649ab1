"""A fine-tune in another layout than its base is pushed and pulled as differences."""

from collections.abc import Callable
from pathlib import Path

from deltahub.client import Hub
from support.models.layouts import stacked, trained
from support.models.model_folders import contents, write_model


def test_a_stacked_fine_tune_of_a_base_with_split_experts_is_sent_as_differences(
    hub: Hub, name: str, tmp_path: Path, other_machine: Callable[[], Path]
) -> None:
    hub.push(write_model(tmp_path / "base", trained(scale=2.0)), f"{name}-base")
    folder = write_model(tmp_path / "tuned", stacked(trained(1e-5, 2.0)))
    pushed = hub.push(folder, name, base=f"{name}-base")
    assert pushed.sent < 0.55 * pushed.size
    other_machine()
    assert contents(hub.pull(name, sha256=True)) == contents(folder)
