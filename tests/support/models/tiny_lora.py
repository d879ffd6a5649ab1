"""A low-rank adapter that was really trained, merged into the weights it was trained on."""

import inspect
from functools import cache

import torch
from torch import nn

from support.models.tiny_models import TinyModel, base

LAYER = "up.weight"  # 192 x 384
RANK = 8
STEPS = 40


class Adapted(nn.Module):
    """The base in BF16, frozen, with an adapter beside its widest layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyModel()
        self.model.load_state_dict(base())
        self.model.to(torch.bfloat16).to(torch.float32).requires_grad_(False)
        n_out, n_in = self.model.up.weight.shape
        self.down = nn.Parameter(torch.randn(RANK, n_in) / n_in**0.5)
        self.up = nn.Parameter(torch.zeros(n_out, RANK))

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        model = self.model
        hidden = model.embedding(context).flatten(1)
        low_rank = hidden @ self.down.T @ self.up.T
        logits: torch.Tensor = model.head(model.down(torch.relu(model.up(hidden) + low_rank)))
        return logits


@cache
def merged_lora() -> tuple[torch.Tensor, torch.Tensor]:
    """(merged, before): the layer in F32 with the adapter added, and in BF16 as it was."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    adapted = Adapted()
    data = torch.tensor(list(inspect.getsource(inspect)[:20_000].encode()))
    optimizer = torch.optim.AdamW([adapted.down, adapted.up], lr=2e-4)
    for _ in range(STEPS):
        at = torch.randint(0, len(data) - 5, (64,))
        context = torch.stack([data[at + i] for i in range(4)], dim=1)
        loss = nn.functional.cross_entropy(adapted(context), data[at + 4])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    before = adapted.model.up.weight.detach()
    merged = before + (adapted.up @ adapted.down).detach()
    return merged, before.to(torch.bfloat16)
