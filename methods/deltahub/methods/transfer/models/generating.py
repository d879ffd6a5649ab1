"""Text from causal models: greedy completions, and samples of one prompt.

Nucleus sampling is that of Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR
2020, arXiv 1904.09751. The same seed gives the same text on the same machine.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import DynamicCache, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.models.encoding import (
    device_of,
    end_id,
    inner_of,
    pad_id,
    padded,
    prompt_ids,
    require_room,
)

BATCH: Final = 16

Progress = Callable[[int, int], None]
"""(done, of all): called after each token; whatever it raises ends the work."""


def unwatched(done: int, total: int) -> None:
    """Nobody wants to know, and nobody cancels."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    top_p: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Continuation:
    """What a model wrote. is_whole: it ended by itself, or by a text that ends it, and not because
    its tokens were used up.
    """

    text: str
    is_whole: bool


def complete(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    contract: Contract,
    *,
    batch_size: int = BATCH,
    on_progress: Progress = unwatched,
) -> list[Continuation]:
    """The greedy completion of each prompt, as far as the contract lets it go."""
    rows = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    # Prompts of similar length share a batch, so that little of it is padding.
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), i))
    found = [Continuation("", True)] * len(rows)
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        batch = [rows[i] for i in places]
        job = _Generation(contract.max_new_tokens, contract.stop, None)

        def on_token(done: int = start) -> None:
            on_progress(done, len(order))

        for i, each in zip(places, job.run(model, tokenizer, batch, on_token), strict=True):
            found[i] = Continuation(contract.completion_of(each.text), each.is_whole)
        on_progress(start + len(places), len(order))
    return found


def continuations(
    model: Any,
    tokenizer: Any,
    prompt: str,
    n: int,
    *,
    max_new_tokens: int,
    stop: Sequence[str] = (),
    sampling: Sampling | None = None,
    on_progress: Progress = unwatched,
) -> list[Continuation]:
    """n samples of what may follow one prompt, which is read once for all of them.

    sampling: None for the greedy continuation, n times.
    """
    row = prompt_ids(tokenizer, prompt)
    job = _Generation(max_new_tokens, tuple(stop), sampling)
    found = job.run(model, tokenizer, [row] * n, lambda: on_progress(0, n), is_shared=True)
    on_progress(n, n)
    return found


@dataclass(frozen=True)
class _Generation:
    max_new_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling | None

    def run(
        self,
        model: Any,
        tokenizer: Any,
        rows: Sequence[Sequence[int]],
        on_token: Callable[[], None],
        is_shared: bool = False,
    ) -> list[Continuation]:
        """The continuation of each row. is_shared: all rows are the same."""
        require_room(model, max(map(len, rows)) + self.max_new_tokens, "a prompt with its answer")
        device = device_of(model)
        ids, mask = padded(rows, pad_id(tokenizer), device, left=True)
        watch = _Watch(tokenizer, ids.shape[1], self.stop, on_token)
        ends = _ends(model, tokenizer)
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode(), _own_settings(model), self._seeded(device):
                given: dict[str, Any] = {}
                cache = _shared_prefix(model, ids) if is_shared else None
                if cache is not None:
                    given["past_key_values"] = cache
                made = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    generation_config=self._config(tokenizer, ends),
                    stopping_criteria=StoppingCriteriaList([watch]),
                    **given,
                )
        finally:
            model.train(was_training)
        return [self._continuation(tokenizer, row, ids.shape[1], ends) for row in made.tolist()]

    def _config(self, tokenizer: Any, ends: Sequence[int]) -> GenerationConfig:
        drawn: dict[str, Any] = {"do_sample": False}
        if self.sampling is not None:
            drawn = {
                "do_sample": True,
                "temperature": self.sampling.temperature,
                "top_p": self.sampling.top_p,
                "top_k": 0,
            }
        return GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=self.max_new_tokens,
            num_beams=1,
            repetition_penalty=1.0,
            use_cache=True,
            eos_token_id=list(ends) or None,
            pad_token_id=pad_id(tokenizer),
            **drawn,
        )

    @contextmanager
    def _seeded(self, device: torch.device) -> Iterator[None]:
        """With torch's random numbers from the seed; those of the caller stay as they are."""
        if self.sampling is None:
            yield
            return
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.sampling.seed)
            yield

    def _continuation(
        self, tokenizer: Any, row: list[int], start: int, ends: Sequence[int]
    ) -> Continuation:
        made = row[start:]
        places = [i for i, token in enumerate(made) if token in ends]
        is_whole = bool(places)
        made = made[: places[0]] if places else made
        text = _text_after(tokenizer, row[:start], made)
        return Continuation(text, is_whole or any(each in text for each in self.stop))


class _Watch(StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """Tells the caller of each token, and ends the rows that have one of the contract's ends."""

    def __init__(
        self, tokenizer: Any, start: int, stop: tuple[str, ...], on_token: Callable[[], None]
    ) -> None:
        self._tokenizer, self._start, self._stop = tokenizer, start, stop
        self._on_token = on_token
        # A token may be a part of a character, but few are.
        self._tail = 2 * max(map(len, stop), default=0) + 8

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._on_token()
        n = input_ids.shape[0]
        if not self._stop:
            return torch.zeros(n, dtype=torch.bool, device=input_ids.device)
        made = input_ids[:, max(self._start, input_ids.shape[1] - self._tail) :]
        texts = self._tokenizer.batch_decode(made, clean_up_tokenization_spaces=False)
        found = [any(each in text for each in self._stop) for text in texts]
        return torch.tensor(found, dtype=torch.bool, device=input_ids.device)


@contextmanager
def _own_settings(model: Any) -> Iterator[None]:
    """Without what the model's own generation_config.json asks for, such as a penalty for
    repetitions: the answer must depend on the weights alone.
    """
    inner = inner_of(model)
    before = inner.generation_config
    inner.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        inner.generation_config = before


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end a text, of which models of chats have several."""
    configured = inner_of(model).generation_config.eos_token_id
    found = configured if isinstance(configured, list) else [configured]
    return sorted({each for each in [*found, end_id(tokenizer)] if each is not None})


def _shared_prefix(model: Any, ids: torch.Tensor) -> Any:
    """The cache of all tokens but the last of a prompt that all rows share; None for models with
    caches of another kind, which read it for each row.
    """
    if ids.shape[0] == 1 or ids.shape[1] == 1:
        return None
    cache = model(input_ids=ids[:1, :-1], use_cache=True).get("past_key_values")
    if type(cache) is not DynamicCache:
        return None
    cache.batch_repeat_interleave(ids.shape[0])
    return cache


def _text_after(tokenizer: Any, before: list[int], made: list[int]) -> str:
    """The text of new tokens, with the white space between them and the prompt, which many
    tokenizers take away from the first token that they decode.
    """
    options: dict[str, Any] = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    prompt: str = tokenizer.decode(before, **options)
    whole: str = tokenizer.decode([*before, *made], **options)
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    found: str = tokenizer.decode(made, **options)
    return found
