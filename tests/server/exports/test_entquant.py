"""Exports of whole numbers take the bits asked for, and the report's numbers are true."""

import numpy as np
import pytest

from deltahub.client import InvalidRequest
from deltahub.codecs.exports.integers import IntegerCoding
from support.exporting.place import Place, as_numbers, decoded, plain_bytes


def test_an_export_takes_the_bits_asked_for_and_reports_its_errors(place: Place) -> None:
    tensors = place.model("bf16")
    export, report = place.export("bf16", "entquant-3", bits=3, method="entquant")
    found = {each["name"]: each for each in report["weights"] if each["method"] == "entquant"}
    assert "model.layers.0.self_attn.q_proj.weight" in found
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & {*found}
    size, count = 0, 0
    for name, each in found.items():
        assert isinstance(export.weights[name].coding, IntegerCoding)
        before = as_numbers(plain_bytes(tensors[name]), "BF16")
        after = as_numbers(decoded(export, name), "BF16")
        error = np.linalg.norm(after - before) / np.linalg.norm(before)
        assert error == pytest.approx(each["error"], rel=1e-9)
        assert each["bound"] is None
        assert each["coded_bytes"] == export.weights[name].size_bytes()
        size += each["coded_bytes"]
        count += len(before)
    assert 8 * size / count == pytest.approx(3, abs=0.1)
    for name in {*export.weights} - {*found}:
        assert decoded(export, name) == plain_bytes(tensors[name])
    card = (place.ann.pull("ann/entquant-3") / "README.md").read_text()
    assert "rounded: to whole numbers, which take" in card


def test_bits_of_the_other_method_are_refused(place: Place) -> None:
    place.model("bf16")
    with pytest.raises(Exception, match="entquant takes 4, 3, 2 bits, not 7"):
        place.export("bf16", "nothing", method="entquant")
    with pytest.raises(InvalidRequest, match="no weight that may be rounded"):
        place.export("bf16", "nothing", bits=4, method="entquant", keep=["*"])
