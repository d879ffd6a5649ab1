"""neuzip_lossless in readable Python. The native kernels must give the same bytes.

Format: codecs/spec/neuzip_lossless.md.
"""

from dataclasses import dataclass

from deltahub.codecs.errors import InvalidInput
from deltahub.codecs.protocol import Buffer
from deltahub.codecs.reference.bits import BitReader, require, write_fields
from deltahub.codecs.reference.coder import (
    ESCAPES,
    Alphabet,
    Coder,
    Context,
    Table,
    ValueSequence,
    guarded,
    read_table,
    read_table_log,
    table_fields,
    unguarded,
)
from deltahub.codecs.reference.words import Words

CONTEXT = Context(table=0, shift=0)
# Because entries of the kernels' tables have no space for more.
MAX_LEADING_BITS = 11


@dataclass(frozen=True)
class Model:
    """The model in a prelude."""

    words: Words  # of a float
    zero_bits: int  # trailing zero bits that all words share
    table: Table
    n_leading: int = 0  # highest mantissa bits that are coded with the exponent

    @property
    def coder(self) -> Coder:
        return Coder(alphabet(self.words, self.zero_bits, self.n_leading), (self.table,))

    @property
    def n_low(self) -> int:
        """Number of mantissa bits below the leading ones."""
        return self.words.mantissa_bits - self.n_leading

    def value(self, word: int) -> int:
        """From high to low: leading bits, sign, other mantissa bits without the zero bits."""
        top = 1 << (self.words.bits - 1)
        leading, low = divmod(word % top, 1 << self.n_low)
        reordered = (leading << 1 | word // top) << self.n_low | low
        value, rest = divmod(reordered, 1 << self.zero_bits)
        if rest:
            raise InvalidInput(f"a word whose low {self.zero_bits} bits are not zero")
        return value

    def word(self, value: int) -> int:
        reordered = (value << self.zero_bits) % (1 << self.words.bits)
        leading_and_sign, low = divmod(reordered, 1 << self.n_low)
        leading, is_negative = divmod(leading_and_sign, 2)
        return is_negative << (self.words.bits - 1) | leading << self.n_low | low


def alphabet(words: Words, zero_bits: int, n_leading: int = 0) -> Alphabet:
    """The escapes, then a symbol for each exponent with each of its leading mantissa bits."""
    leading_bits = words.exponent_bits + n_leading
    width = words.bits - leading_bits - zero_bits
    return Alphabet(
        (*ESCAPES, *((bits, width) for bits in range(1 << leading_bits))), length_distance=1
    )


def write_prelude(model: Model) -> bytes:
    fields = [(model.table.table_log, 4), (model.zero_bits, 6), (model.n_leading, 4)]
    return write_fields(fields + table_fields(model.table, length_distance=1))


def parse_prelude(words: Words, prelude: Buffer) -> Model:
    """The model. CorruptFrame if no encoder writes such a prelude."""
    require(words.is_float, "neuzip_lossless codes floats only")
    reader = BitReader(prelude)
    table_log = read_table_log(reader)
    zero_bits = reader.take(6)
    require(zero_bits <= words.mantissa_bits, f"{zero_bits} zero bits in every mantissa")
    n_leading = reader.take(4)
    require(
        n_leading <= words.mantissa_bits - zero_bits
        and words.exponent_bits + n_leading <= MAX_LEADING_BITS,
        f"{n_leading} leading bits in every mantissa",
    )
    table = read_table(reader, table_log, alphabet(words, zero_bits, n_leading))
    require(reader.take_rest() == b"", "the prelude goes on")
    return Model(words, zero_bits, table, n_leading)


def block_values(model: Model, source: Buffer) -> ValueSequence:
    values = [model.value(word) for word in model.words.read(source)]
    return ValueSequence(model.words.bits, [CONTEXT] * len(values), values)


def encode_block(model: Model, source: Buffer) -> bytes:
    """One coded block. It may be as long as the block or longer; then an encoder stores it raw."""
    return guarded(model.coder.encode([block_values(model, source)]))


def decode_block(model: Model, block: Buffer, n_words: int) -> bytes:
    """The decoded words of a coded block. CorruptFrame for a block that no encoder writes."""
    reader = model.coder.open(unguarded(block))
    values = reader.take_sequence(model.words.bits, [CONTEXT] * n_words)
    reader.finish()
    return model.words.write([model.word(value) for value in values])
