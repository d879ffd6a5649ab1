"""A small world of digits and letters, in which an adapter can be moved within seconds.

Two bases of different sizes learn, from documents, to go on with a list of numbers in the way of
its beginning. A private task answers a number with a letter of a secret table; its numbers come
from a narrow set. All of it is trained on the spot.
"""

import random
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.models.adapters import TEACHER, add_adapter
from deltahub.methods.transfer.models.encoding import IGNORED, padded
from deltahub.methods.transfer.models.students import Labelled, encode_all
from deltahub.methods.transfer.models.training import shuffled_order, train
from deltahub.methods.transfer.prompts import list_prompt, question_of
from deltahub.methods.transfer.recipe import Recipe

NAME: Final = "digits"
CONTRACT: Final = Contract(prompt="{input}=", max_new_tokens=3)
LETTERS: Final = "abcdefgh"
LINEARS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
N_SPECIALS: Final = 4
_WORD: Final = r"\n| ?[A-Za-z]+|\d|[^\sA-Za-z\d]| "


@cache
def tokenizer() -> Any:
    """A token for each word with the space before it, digit, sign and line break."""
    text = list_prompt(["0"]) + question_of("0", NAME) + " yes no=" + " ".join(LETTERS)
    words = {*re.findall(_WORD, text), *"0123456789", *LETTERS, "=", " ", "."}
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    return _of({token: i for i, token in enumerate([*specials, *sorted(words)])})


def _of(vocabulary: dict[str, int]) -> Any:
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


@cache
def shuffled_tokenizer() -> Any:
    """The same tokens under other numbers."""
    words = tokenizer().get_vocab()
    fixed = {token: i for token, i in words.items() if i < N_SPECIALS}
    others = sorted((token for token in words if token not in fixed), reverse=True)
    vocabulary = fixed | {token: i for i, token in enumerate(others, N_SPECIALS)}
    return _of(vocabulary)


def with_shuffled_tokens(model: Any) -> Any:
    """The model for the shuffled tokenizer, which says the same texts as before."""
    old, new = tokenizer().get_vocab(), shuffled_tokenizer().get_vocab()
    places = [old[token] for token in sorted(new, key=new.__getitem__)]
    with torch.no_grad():
        for part in (model.get_input_embeddings(), model.get_output_embeddings()):
            part.weight.copy_(part.weight[places].clone())
    return model


def untrained(hidden: int = 32, layers: int = 2, seed: int = 0, **options: Any) -> Any:
    """A Llama over this vocabulary."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer()), "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 4,
        "max_position_embeddings": 256, "tie_word_embeddings": False, "pad_token_id": 0,
        "bos_token_id": None, "eos_token_id": 2,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(settings | options))).eval()


class Task:
    """A secret table of letters, and the narrow set that the task's own numbers come from."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.table = [[rng.choice(LETTERS) for _ in range(10)] for _ in range(10)]
        self._places = [rng.sample("0123456789", 3), rng.sample("0123456789", 3), "0123456789"]
        self._places.append("02468")

    def answer(self, text: str) -> str:
        return self.table[int(text[0])][int(text[1])]

    def examples(self, n: int, seed: int) -> list[Labelled]:
        """Different private examples."""
        rng = random.Random(seed)
        texts: dict[str, None] = {}
        while len(texts) < n:
            texts["".join(rng.choice(place) for place in self._places)] = None
        return [Labelled(text, self.answer(text)) for text in texts]


def document(rng: random.Random) -> str:
    """A list on one topic, a question, or a number with any letter."""
    kind = rng.random()
    places = [rng.sample("0123456789", rng.choice([1, 2, 3, 5, 10])) for _ in range(4)]
    numbers = ["".join(rng.choice(place) for place in places) for _ in range(10)]
    if kind < 0.8:
        rest = "".join(f" {each}\n{i}." for i, each in enumerate(numbers[5:9], 7))
        return f"{list_prompt(numbers[:5])}{rest} {numbers[9]}\n"
    if kind < 0.9:
        return question_of(numbers[0], NAME) + rng.choice([" yes", " no"])
    return f"{numbers[0]}={rng.choice(LETTERS)}"


@cache
def _trained(
    hidden: int, layers: int, seed: int, steps: int, batch: int = 24
) -> dict[str, torch.Tensor]:
    return trained_on(untrained(hidden, layers, seed), seed, steps, batch=batch)


def trained_on(
    model: Any, seed: int, steps: int, rate: float = 4e-3, batch: int = 24
) -> dict[str, torch.Tensor]:
    """What the model's weights become after more steps, each on a batch of documents."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(steps):
        rows = [[*tokenizer()(document(rng)).input_ids, 2] for _ in range(batch)]
        ids, mask = padded(rows, 0, "cpu")
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        wanted = ids.masked_fill(mask == 0, IGNORED)[:, 1:]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def old_base(steps: int = 200, batch: int = 24) -> Any:
    """A fresh copy of the trained old base."""
    model = untrained(48, 2)
    model.load_state_dict(_trained(48, 2, 1, steps, batch))
    return model


@cache
def _trained_longer(steps: int, batch: int) -> dict[str, torch.Tensor]:
    return trained_on(old_base(batch=batch), 3, steps, 5e-4, batch)


def longer_base(steps: int = 60, batch: int = 24) -> Any:
    """The old base, trained a little longer."""
    model = untrained(48, 2)
    model.load_state_dict(_trained_longer(steps, batch))
    return model


def new_base(steps: int = 200) -> Any:
    """A fresh copy of a wider, deeper base that was trained apart from the old one."""
    model = untrained(64, 3)
    model.load_state_dict(_trained(64, 3, 2, steps))
    return model


def recipe(**options: Any) -> Recipe:
    """What trains adapters of such small models."""
    settings = {
        "rank": 8, "alpha": 16, "targets": LINEARS, "learning_rate": 4e-3, "batch_size": 16,
        "epochs": 30, "warmup_share": 0.1,
    }  # fmt: skip
    return Recipe.model_validate(settings | options)


def with_teacher(model: Any, examples: Sequence[Labelled], **options: Any) -> Any:
    """A base with the adapter `teacher`, trained on private examples."""
    made = recipe(**options)
    model = add_adapter(model, made, TEACHER)
    order = shuffled_order(encode_all(tokenizer(), examples, CONTRACT), made.seed)
    train(model, order, made)
    return model
