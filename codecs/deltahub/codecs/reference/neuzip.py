"""Exports in plain NumPy, by integers alone. The native kernels must give the same words.

Format: codecs/spec/neuzip.md. Names are the page's: M mantissa bits, of which k are kept; a block
of scale t was divided by (256 + t) / 256. Words are BF16, F16 or F32, as arrays of int64.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltahub.codecs.dtypes import DType
from deltahub.codecs.protocol import Buffer
from deltahub.codecs.reference.words import Words

Array = npt.NDArray[np.int64]
ONE = 256  # a scale t stands for the factor (ONE + t) / ONE


@dataclass(frozen=True)
class Form:
    """The form of a dtype's words, and how many elements share a scale (0: there are none)."""

    dtype: DType
    block: int = 0

    @property
    def mantissa_bits(self) -> int:
        return Words.of(self.dtype).mantissa_bits

    @property
    def infinity(self) -> int:
        return Words.of(self.dtype).max_exponent << self.mantissa_bits

    @property
    def sign(self) -> int:
        return Words.of(self.dtype).sign

    def read(self, words: Buffer) -> Array:
        return np.frombuffer(words, f"<u{self.dtype.itemsize}").astype(np.int64)

    def write(self, words: Array) -> bytes:
        return words.astype(f"<u{self.dtype.itemsize}").tobytes()

    def significands(self, words: Array) -> tuple[Array, Array]:
        """(exponent, significand) of each word: its magnitude is significand x 2^exponent, times
        what is the same for all words. Exponents begin at 1, which subnormal words have, too.
        """
        magnitudes = words & (self.sign - 1)
        fields, mantissas = magnitudes >> self.mantissa_bits, self.mantissas(words)
        hidden = np.where(fields > 0, 1 << self.mantissa_bits, 0)
        return np.maximum(fields, 1), mantissas + hidden

    def mantissas(self, words: Array) -> Array:
        return words & ((1 << self.mantissa_bits) - 1)

    def factors(self, scales: Buffer | None, count: int) -> Array:
        """ONE + t of each element; ONE where there are no scales."""
        if scales is None:
            return np.full(count, ONE)
        each = np.frombuffer(scales, np.uint8).astype(np.int64)
        return ONE + each.repeat(self.block)[:count]


def halves_to_even(numerators: Array, denominators: Array) -> Array:
    """The nearest integers to the quotients; ties to the even one."""
    whole, rest = np.divmod(numerators, denominators)
    is_up = (2 * rest > denominators) | ((2 * rest == denominators) & (whole % 2 == 1))
    nearest: Array = whole + is_up
    return nearest


def scales_of(form: Form, words: Buffer) -> bytes:
    """The scale of each block: the eight highest fraction bits of its largest magnitude."""
    magnitudes = form.read(words) & (form.sign - 1)
    found = bytearray()
    for first in range(0, len(magnitudes), form.block):
        _, significands = form.significands(
            magnitudes[first : first + form.block].max(keepdims=True)
        )
        significand = int(significands[0])
        # The bits below the highest one; it is the hidden bit unless the word is subnormal.
        n_bits = max(significand.bit_length() - 1, 0)
        fraction = significand - (1 << n_bits) if significand else 0
        found.append((fraction << 8) >> n_bits)
    return bytes(found)


def round_words(form: Form, words: Buffer, kept: int, scales: Buffer | None = None) -> bytes:
    """The words, divided by their blocks' factors and rounded once to `kept` mantissa bits."""
    values, m = form.read(words), form.mantissa_bits
    factors = form.factors(scales, len(values))
    exponents, significands = form.significands(values)
    numerators = significands * ONE
    # A quotient below the hidden bit has the next exponent, unless that is the one of subnormals.
    is_below = (numerators < factors << m) & (exponents > 1)
    exponents, numerators = exponents - is_below, numerators << is_below
    rounded = halves_to_even(numerators, factors << (m - kept))
    # The hidden bit adds 1 to the exponent's field.
    magnitudes = (exponents - 1 << kept) + rounded
    largest = (form.infinity >> (m - kept)) - 1
    return form.write((values & form.sign) | np.minimum(magnitudes, largest) << (m - kept))


def pack(form: Form, words: Buffer, low: int, width: int) -> bytes:
    """The plane of `width` bits of each word from bit `low` on."""
    number = 0
    for i, word in enumerate(form.read(words).tolist()):
        number |= (word >> low) % (1 << width) << width * i
    return number.to_bytes(-(-len(words) // form.dtype.itemsize * width // 8), "little")


def unpack(plane: Buffer, width: int, count: int) -> Array:
    """The bits of each element in a plane."""
    bits = np.unpackbits(np.frombuffer(plane, np.uint8), bitorder="little")
    fields = bits[: count * width].reshape(count, width).astype(np.int64)
    places: Array = 1 << np.arange(width)
    return fields @ places


def fill_of(form: Form, kept: int, level: int) -> int:
    """The mantissa bits below `level` bits that a reader of so many puts into a word."""
    n_values, unused = 1 << (kept - level), form.mantissa_bits - kept
    if level == kept:
        return 0
    # Rounded words stand in the middle of their intervals, words that keep all bits for themselves.
    return ((n_values - 1) << unused) // 2 if unused else n_values // 2


def multiply(form: Form, words: Array, factors: Array) -> Array:
    """The words times factor / ONE, rounded once, at most the largest finite."""
    m = form.mantissa_bits
    exponents, significands = form.significands(words)
    products = significands * factors
    is_above = products >= ONE << (m + 1)
    rounded = halves_to_even(products, np.where(is_above, 2 * ONE, ONE))
    magnitudes = (exponents + is_above - 1 << m) + rounded
    scaled: Array = (words & form.sign) | np.minimum(magnitudes, form.infinity - 1)
    return scaled


def decode(
    form: Form,
    words: Buffer,
    planes: Mapping[tuple[int, int], Buffer],
    fill: int = 0,
    scales: Buffer | None = None,
) -> bytes:
    """A slice's elements. words: the decoded part `words`. planes: (lowest bit, width) -> plane."""
    values = form.read(words)
    for (low, width), plane in planes.items():
        values |= unpack(plane, width, len(values)) << low
    is_normal = values & (form.sign - 1) >= 1 << form.mantissa_bits
    values |= np.where(is_normal, fill, 0)
    if scales is not None:
        values = multiply(form, values, form.factors(scales, len(values)))
    return form.write(values)


def scale_integers(form: Form, integers: Buffer, steps: Buffer, columns: int) -> bytes:
    """The words of integers times their rows' steps, an element at a time."""
    m, rows = form.mantissa_bits, form.read(steps)
    exponents, significands = (each.tolist() for each in form.significands(rows))
    words = []
    for i, number in enumerate(np.frombuffer(integers, np.int8).tolist()):
        exponent, product = exponents[i // columns], significands[i // columns] * abs(number)
        n_more = max(product.bit_length() - (m + 1), 0)
        (rounded,) = halves_to_even(np.array([product]), np.array([1 << n_more])).tolist()
        magnitude = min((exponent + n_more - 1 << m) + rounded, form.infinity - 1)
        words.append((form.sign if number < 0 else 0) + magnitude if product else 0)
    return form.write(np.array(words))
