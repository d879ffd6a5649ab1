"""TiTok: which completions, and which of their tokens, show what an adapter has learnt.

Jung and Kim, "TiTok: Transfer Token-level Knowledge via Contrastive Excess to Transplant LoRA",
ICLR 2026, arXiv 2510.04682. The excess of a token is S(y_i) = L_e(y_i) - L_a(y_i), where L_e is its
log-probability under source base and adapter (the expert), and L_a under the base alone (the
amateur). The inputs with the highest mean excess are kept, and of their tokens those with the
highest excess; the new adapter's loss covers these, and the end of the text. That is our addition,
because a student that never learns the end goes on after a right answer. No discriminator is
needed, so that it works for an adapter without a kit. Which shares are kept is our choice.

Between two tokenizers, the excess belongs to characters, and a token of the target is learnt if a
chosen token of the source overlaps with it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Spans = Sequence[tuple[int, int]]
"""for each token: its first character, and the one after its last"""

KEPT_TEXTS: Final = 0.5
KEPT_TOKENS: Final = 0.7


def excess(expert: Values, amateur: Values) -> Values:
    """S of each token, from both log-probabilities."""
    return expert - amateur


def best_texts(scores: Sequence[Values], share: float = KEPT_TEXTS) -> list[int]:
    """The places of the texts with the highest mean excess, in their order; at least one."""
    means = [float(each.mean()) if len(each) else -np.inf for each in scores]
    n = max(1, round(len(means) * share))
    return sorted(sorted(range(len(means)), key=lambda i: (-means[i], i))[:n])


def best_tokens(scores: Values, share: float = KEPT_TOKENS) -> npt.NDArray[np.bool_]:
    """Which tokens of one text have the highest excess; at least one. Of equal ones, the first."""
    kept = np.zeros(len(scores), dtype=np.bool_)
    n = max(1, round(len(scores) * share))
    kept[np.argsort(-scores, kind="stable")[:n]] = True
    return kept


def moved_choice(
    chosen: npt.NDArray[np.bool_], source: Spans, target: Spans
) -> npt.NDArray[np.bool_]:
    """Which tokens of the target share a character with a chosen token of the source.

    Two pointers go along both lists, which cover the same text in order.
    """
    found = np.zeros(len(target), dtype=np.bool_)
    i = 0
    for j, (start, end) in enumerate(target):
        while i < len(source) and source[i][1] <= start:
            i += 1
        k = i
        while k < len(source) and source[k][0] < end:
            found[j] |= bool(chosen[k])
            k += 1
    return found
