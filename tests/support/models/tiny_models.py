"""Really trained models of some 100,000 parameters: a base, fine-tunes, what becomes of them."""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import islice

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


class TinyConv(nn.Module):
    """Two convolutions over 8 x 8 bytes of a text, and what is left of them tells the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 24, 3, bias=False)
        self.norm = nn.BatchNorm2d(24)
        self.second = nn.Conv2d(24, 48, 3)
        self.head = nn.Linear(48, 31)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.second(torch.relu(self.norm(self.first(image))))
        logits: torch.Tensor = self.head(torch.relu(hidden).mean((2, 3)))
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


@cache
def checkpoints(n: int, learning_rate: float = 2e-5, apart: int = 4) -> list[Tensors]:
    """The base in the course of one fine-tune: its weights after each `apart` steps."""
    torch.manual_seed(300)
    model = TinyModel()
    model.load_state_dict(base())
    text = inspect.getsource(inspect)[:20_000]
    steps = _training(model, text, learning_rate)
    return list(islice(steps, apart - 1, n * apart, apart))


# A text for each task, unlike each other and unlike the base's.
_TASKS = ("inspect", "decimal", "argparse", "mailbox", "tarfile", "typing", "locale", "ftplib")


@cache
def task(number: int, learning_rate: float = 1e-4) -> Tensors:
    """The base after a fine-tune on the text of one task, 0 to 7. The head is the base's."""
    torch.manual_seed(200 + number)
    model = TinyModel()
    model.load_state_dict(base())
    model.head.requires_grad_(False)
    text = inspect.getsource(importlib.import_module(_TASKS[number]))[:20_000]
    return _train(model, text, learning_rate, 30)


@cache
def convolutions() -> tuple[Tensors, Tensors]:
    """(base, fine-tune) with kernels of four dimensions, and counters without any."""
    torch.manual_seed(5)
    model, data = TinyConv(), torch.tensor(list(inspect.getsource(inspect).encode()))
    states = []
    for learning_rate, steps in ((3e-3, 40), (1e-5, 10)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        for _ in range(steps):
            at = torch.randint(0, len(data) - 65, (32,))
            images = torch.stack([data[i : i + 64].view(1, 8, 8) for i in at.tolist()])
            loss = nn.functional.cross_entropy(model(images / 128), data[at + 64] % 31)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        states.append({name: each.detach().clone() for name, each in model.state_dict().items()})
    return states[0], states[1]


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
    *_, weights = islice(_training(model, text, learning_rate), steps)
    return weights


def _training(model: TinyModel, text: str, learning_rate: float) -> Iterator[Tensors]:
    """The weights after each step of training."""
    torch.set_num_threads(1)
    data = torch.tensor(list(text.encode()))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate)
    while True:
        at = torch.randint(0, len(data) - 5, (64,))
        context = torch.stack([data[at + i] for i in range(4)], dim=1)
        loss = nn.functional.cross_entropy(model(context), data[at + 4])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        yield {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
