"""Really trained models of some 100,000 parameters: a base, fine-tunes, what becomes of them."""

import inspect
import textwrap
from functools import cache

import torch
from safetensors.torch import save
from torch import nn

VOCABULARY = 256
WIDTH = 96

Tensors = dict[str, torch.Tensor]


class TinyModel(nn.Module):
    """Two layers of a perceptron over the last four bytes of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.up = nn.Linear(4 * WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(context).flatten(1)
        logits: torch.Tensor = self.head(self.down(torch.relu(self.up(hidden))))
        return logits


@cache
def base(seed: int = 0) -> Tensors:
    """A base trained from scratch, F32. Other seeds give models that are no relatives."""
    torch.manual_seed(seed)
    return _train(TinyModel(), textwrap.__doc__ or inspect.getsource(textwrap), 1e-3, 150)


@cache
def finetune(learning_rate: float, seed: int = 0) -> Tensors:
    """The base after AdamW at this learning rate on another text."""
    torch.manual_seed(100)
    model = TinyModel()
    model.load_state_dict(base(seed))
    return _train(model, inspect.getsource(inspect)[:20_000], learning_rate, 40)


def cast(tensors: Tensors, dtype: torch.dtype) -> Tensors:
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def with_more_rows(tensors: Tensors, rows: int) -> Tensors:
    """The vocabulary extended: new rows at the end of embedding and head."""
    generator = torch.Generator().manual_seed(7)
    new = torch.randn(rows, WIDTH, generator=generator).mul_(0.02)
    longer = {
        name: torch.cat([tensors[name], new.to(tensors[name].dtype)])
        for name in ("embedding.weight", "head.weight")
    }
    return {**tensors, **longer}


def renamed(tensors: Tensors, prefix: str = "model.") -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def to_file(tensors: Tensors) -> bytes:
    """A safetensors file."""
    return save({name: tensor.contiguous() for name, tensor in tensors.items()})


def _train(model: TinyModel, text: str, learning_rate: float, steps: int) -> Tensors:
    torch.set_num_threads(1)
    data = torch.tensor(list(text.encode()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    for _ in range(steps):
        at = torch.randint(0, len(data) - 5, (64,))
        context = torch.stack([data[at + i] for i in range(4)], dim=1)
        loss = nn.functional.cross_entropy(model(context), data[at + 4])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
