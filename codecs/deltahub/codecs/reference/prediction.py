"""The word that a low-rank product predicts from a base word, in integer arithmetic.

Format: codecs/spec/fm_delta.md, "Prediction".
"""

from collections.abc import Sequence

from deltahub.codecs.dtypes import DType
from deltahub.codecs.reference.words import Words, signed

# Bits that sums keep below the last mantissa bit, for the dtypes that may have a product.
GUARD_BITS = {
    Words.of(DType.BF16): 14,
    Words.of(DType.F16): 11,
    Words.of(DType.F32): 6,
}
LARGEST_STEP = 1 << 30


def product(left: Sequence[int], right: Sequence[int]) -> int:
    """The sum of products modulo 2^32, as a two's complement number."""
    return signed(sum(a * b for a, b in zip(left, right, strict=True)), 32)


def rounded_product(words: Words, step: int, zero_bits: int = 0) -> int:
    """A product rounded to the precision of the dtype's mantissa; ties to even.

    zero_bits: trailing zero bits that all words share; the precision is this much lower.
    """
    drop = max(abs(step).bit_length() - (words.mantissa_bits + 1 - zero_bits), 0)
    rounded = _rounded(abs(step), drop) << drop
    return signed(-rounded if step < 0 else rounded, 32)


def predicted(words: Words, base: int, step: int, c0: int) -> int:
    """The base word plus step * 2^(c0 - guard bits) last places of exponent field 1, rounded to
    the nearest, ties to even.

    The result is the base if the base is infinite or NaN, or if the sum would be infinite. If the
    sum is 0, the result has the base's sign and a quarter of the sum's unit, as the steps below
    give for a number without digits; it is 0 if that is not a normal number.
    """
    guard, mantissa_bits = GUARD_BITS[words], words.mantissa_bits
    exponent = words.exponent(base)
    if exponent == words.max_exponent:
        return base
    mantissa = words.mantissa(base) + (1 << mantissa_bits if exponent > 0 else 0)
    exponent = max(exponent, 1)

    common = max(exponent, c0)
    step >>= min(common - c0, 31)
    step = min(max(step, -LARGEST_STEP), LARGEST_STEP - 1)
    if step == 0:
        return base
    magnitude = (mantissa << guard) >> min(common - exponent, 31)
    total = (-magnitude if base & words.sign else magnitude) + step
    sign = base & words.sign if total == 0 else words.sign if total < 0 else 0

    n_bits = abs(total).bit_length()
    exponent = max(common + n_bits - (mantissa_bits + 1 + guard), 1)
    mantissa = _rounded(abs(total), exponent + guard - common)
    magnitude = ((exponent - 1) << mantissa_bits) + mantissa
    if magnitude >= words.max_exponent << mantissa_bits:
        return base
    return magnitude | sign


def _rounded(magnitude: int, drop: int) -> int:
    """magnitude / 2^drop to the nearest integer, ties to even."""
    if drop <= 0:
        return magnitude << -drop
    whole, rest = divmod(magnitude, 1 << drop)
    half = 1 << (drop - 1)
    return whole + (rest > half or (rest == half and whole % 2 == 1))
