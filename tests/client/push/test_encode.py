"""How a pushed tensor will be encoded: with which base, or standalone."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from deltahub.client.local.index import LocalIndex
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.push.base import BaseSet, LocalBase
from deltahub.client.push.encode import LocalTensor, choose
from deltahub.codecs import tensor_id
from deltahub.codecs.files.split import FilePiece
from support.models import tiny_models as tiny

NAME = "up.weight"


def test_a_tensor_that_the_hub_has_too_deep_does_not_count_against_its_own_delta(
    tmp_path: Path,
) -> None:
    tensors = {"base": tiny.base(), "tune": tiny.finetune(2e-4)}
    name = next(name for name in tensors["base"] if name.endswith(NAME))
    words = {key: value[name].to(torch.bfloat16) for key, value in tensors.items()}
    with closing(Sources(LocalIndex(tmp_path / "index.sqlite"))) as sources:
        ids = {}
        for key, tensor in words.items():
            data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
            (tmp_path / key).write_bytes(data)
            ids[key] = tensor_id(data)
            sources.add(ids[key], tmp_path / key, 0, len(data))
        shape = tuple(words["tune"].shape)
        size = 2 * words["tune"].numel()
        piece = FilePiece(0, size, False, "BF16", shape, name)
        tune = LocalTensor(ids["tune"], tmp_path / "tune", piece)
        base = LocalBase(name, "BF16", shape, ids["base"])
        expected = choose(tune, [BaseSet([base])], sources)
        assert expected.base is not None
        assert expected.ratio < 0.6
        # The hub has this very tensor at the end of a chain: an empty delta, and a forbidden one.
        deep = replace(base, too_deep=ids["tune"])
        assert choose(tune, [BaseSet([deep])], sources).base == expected.base
