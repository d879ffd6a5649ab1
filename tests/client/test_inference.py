"""`deltahub.client.inference`: what it takes as a model, and the errors that it raises."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from deltahub import client
from deltahub.client.inference import load, load_family, map_export
from deltahub.codecs.exports.file import FILE_NAME
from support.models.exported import batch, trained_llama, write_export


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(trained_llama(), tmp_path_factory.mktemp("export"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("./nosuch", "./nosuch is no folder here, nor the name of a repository: give"),
        ("nosuch", "nosuch is no folder here, nor the name of a repository: give"),
        (Path("lab/nosuch"), "there is no folder lab/nosuch"),
        ("lab/nosuch@", "names no revision"),
    ],
)
def test_what_is_neither_a_folder_nor_a_repository_is_refused(target: Any, message: str) -> None:
    with pytest.raises(client.InvalidArgument, match=message):
        load(target)
    with pytest.raises(client.InvalidArgument, match=message):
        load_family(target, [])


def test_arguments_are_refused_before_a_hub_is_asked() -> None:
    for threads in (0, -1, 1.5):
        with pytest.raises(client.InvalidArgument, match="whole number from 1 on"):
            load("lab/model", threads=threads)  # type: ignore[arg-type]
    with pytest.raises(client.InvalidInput, match="'foo' is no device"):
        load("lab/model", device="foo")


def test_errors_on_this_machine_have_roots_codes_and_messages(export: Path) -> None:
    with pytest.raises(client.CodecError) as refused:
        load(export, bits=3)
    assert type(refused.value) is client.InvalidInput
    assert refused.value.code == "invalid_input"
    assert "is lossless" in refused.value.message
    with pytest.raises(client.MethodError) as failed:
        load(export.parent)
    assert type(failed.value) is client.CannotExport
    assert failed.value.code == "cannot_export"
    assert "make an export" in failed.value.message


def test_a_missing_package_is_named_with_what_to_run() -> None:
    program = "import sys; sys.modules['torch'] = None; import deltahub.client.inference"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: deltahub.client.inference needs torch: in a checkout" in run.stderr
    assert 'run pip install ".[demo]"' in run.stderr


def test_a_family_has_one_fine_tune_or_many_by_folder(tmp_path: Path) -> None:
    for name in ("base", "tune"):
        trained_llama().save_pretrained(tmp_path / name)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "tune", dtype="auto")
    for fine_tunes in (str(tmp_path / "tune"), tmp_path / "tune", [tmp_path / "tune"]):
        family = load_family(tmp_path / "base", fine_tunes)
        assert family.names == ("base", str(tmp_path / "tune"))
    model = family.use(str(tmp_path / "tune"))
    assert torch.equal(model(batch()).logits, plain(batch()).logits)


def test_an_export_is_mapped_by_its_folder_or_its_file(export: Path) -> None:
    names = map_export(export / FILE_NAME).weights.keys()
    assert map_export(export).weights.keys() == map_export(str(export)).weights.keys() == names
    with pytest.raises(FileNotFoundError, match=FILE_NAME):
        map_export(export.parent)
