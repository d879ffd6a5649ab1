"""A small language model that is trained on the spot, and its weights after each step as BF16.

Supervised learning of bytes of Python's own source. The weights that the optimizer keeps are F32; a
step is what their cast to BF16 gives, as a trainer hands it to engines.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.text import load_corpus

_BYTES = 256


@dataclass(frozen=True)
class Size:
    """Of the model: `layers` blocks of width `width`. batch, sequence: of one step, in bytes."""

    width: int
    layers: int
    batch: int
    sequence: int


TINY = Size(width=128, layers=2, batch=4, sequence=64)  # half a million weights
SMALL = Size(width=512, layers=6, batch=4, sequence=128)  # 19 million weights


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.qkv(self.attention_norm(hidden)).chunk(3, dim=-1)
        heads = [each.view(batch, length, -1, 64).transpose(1, 2) for each in parts]
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.down(functional.gelu(self.up(self.mlp_norm(hidden))))


class _Model(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_BYTES, size.width)
        self.positions = nn.Embedding(size.sequence, size.width)
        self.blocks = nn.ModuleList(_Block(size.width) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, _BYTES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        hidden = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Training:
    """One training: first `warm_up` steps at an ordinary rate, so that weights are no noise."""

    def __init__(self, size: Size, warm_up: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self._size = size
        self._generator = torch.Generator().manual_seed(seed)
        text = load_corpus("python", 2_000_000).encode()
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._model = _Model(size)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3, betas=(0.9, 0.95))
        for _ in range(warm_up):
            self._step()

    def steps(self, rate: float) -> Iterator[dict[str, torch.Tensor]]:
        """The weights as they are, and then after each step at this rate, without an end."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        while True:
            yield self._weights()
            self._step()

    def _weights(self) -> dict[str, torch.Tensor]:
        state = self._model.state_dict()
        return {name: value.to(torch.bfloat16) for name, value in state.items()}

    def _step(self) -> None:
        size = self._size
        last = len(self._text) - size.sequence - 1
        starts = torch.randint(last, (size.batch, 1), generator=self._generator)
        window = self._text[starts + torch.arange(size.sequence + 1)].long()
        scores = self._model(window[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def changed_share(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    """The share of the BF16 words that two steps do not have in common."""
    total = sum(each.numel() for each in after.values())
    changed = sum(
        int((before[name].view(torch.int16) != each.view(torch.int16)).sum())
        for name, each in after.items()
    )
    return changed / total
