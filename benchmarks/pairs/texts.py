"""Batches of the standard library's text: token windows, and functions with docstrings."""

import ast
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks.models.text import files_of, load_corpus
from benchmarks.models.training import train_tokenizer
from benchmarks.pairs.loop import generator_of

_MAX_CHARACTERS = 400  # of a function or a docstring; no sequence here holds more
_FEWEST_FUNCTIONS = 2000


def tokenizer_of(vocabulary: int, text_bytes: int) -> Tokenizer:
    """A byte-level BPE of the Python sources, whatever a base is trained on."""
    return train_tokenizer(load_corpus("python", text_bytes), vocabulary).backend_tokenizer


def windows(
    tokenizer: Tokenizer, corpus: str, text_bytes: int, batch: int, sequence: int, seed: int
) -> Callable[[int], torch.Tensor]:
    """Step -> token ids, shape (batch, sequence)."""
    text = load_corpus(corpus, text_bytes)
    # In pieces: the tokenizer takes quadratic time on one string of many megabytes.
    pieces = [text[i : i + 100_000] for i in range(0, len(text), 100_000)]
    encoded = tokenizer.encode_batch(pieces, add_special_tokens=False)
    tokens = torch.tensor([token for piece in encoded for token in piece.ids])
    offsets = torch.arange(sequence)

    def batch_of(step: int) -> torch.Tensor:
        starts = torch.randint(
            len(tokens) - sequence, (batch, 1), generator=generator_of(seed, step)
        )
        return tokens[starts + offsets]

    return batch_of


def frequent_words(corpus: str, text_bytes: int, n: int, tokenizer: Tokenizer) -> list[str]:
    """The n words that a vocabulary of its own would gain most from: long, frequent, in pieces."""
    counts: dict[str, int] = {}
    for word in load_corpus(corpus, text_bytes).split():
        if word.replace("_", "").isalnum():
            counts[word] = counts.get(word, 0) + 1
    top = sorted(counts, key=lambda word: (-counts[word], word))[: 40 * n]
    gains = {word: (len(tokenizer.encode(word).ids) - 1) * counts[word] for word in top}
    return sorted(gains, key=lambda word: (-gains[word], word))[:n]


def functions() -> list[tuple[str, str]]:
    """(docstring, source without it) of the standard library's functions, in order of its files."""
    found: list[tuple[str, str]] = []
    for path in files_of("python"):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError:
            continue  # kept by the library to test its own parser
        found += [pair for node in ast.walk(tree) if (pair := _pair(node)) is not None]
    if len(found) < _FEWEST_FUNCTIONS:
        where = sysconfig.get_paths()["stdlib"]
        raise RuntimeError(f"{len(found)} functions with docstrings in {where}: too few to train")
    return found


def _pair(node: ast.AST) -> tuple[str, str] | None:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
        return None
    text = ast.get_docstring(node)
    if text is None or len(text) < 20:
        return None
    node.body = node.body[1:]
    code = textwrap.dedent(ast.unparse(node))
    return text[:_MAX_CHARACTERS], code[:_MAX_CHARACTERS]


def function_batches(
    tokenizer_file: Path, batch: int, sequence: int, seed: int
) -> Callable[[int], tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """Step -> (docstrings, sources) as an encoder takes them, `batch` of each."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(sequence)
    tokenizer.enable_padding()
    pairs = functions()

    def encoded(texts: list[str]) -> dict[str, torch.Tensor]:
        rows = tokenizer.encode_batch(texts)
        return {
            "input_ids": torch.tensor([row.ids for row in rows]),
            "attention_mask": torch.tensor([row.attention_mask for row in rows]),
        }

    def batch_of(step: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        chosen = torch.randperm(len(pairs), generator=generator_of(seed, step))[:batch]
        return encoded([pairs[i][0] for i in chosen]), encoded([pairs[i][1] for i in chosen])

    return batch_of
