"""neuzip_lossless in readable Python: what the native kernels must do, byte for byte.

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
    Numbers,
    Table,
    guarded,
    read_table,
    read_table_log,
    table_fields,
    unguarded,
)
from deltahub.codecs.reference.words import Words

CONTEXT = Context(table=0, shift=0)
# What an entry of the kernels' tables has room for.
MOST_LEADING_BITS = 11


@dataclass(frozen=True)
class Model:
    """What the prelude says."""

    words: Words  # of a float
    zero_bits: int  # lowest bits of every word's mantissa that are zero
    table: Table
    n_leading: int = 0  # highest digits of the mantissa that are coded with the exponent

    @property
    def coder(self) -> Coder:
        return Coder(alphabet(self.words, self.zero_bits, self.n_leading), (self.table,))

    @property
    def n_low(self) -> int:
        """Digits of the mantissa behind the sign."""
        return self.words.mantissa_bits - self.n_leading

    def number(self, word: int) -> int:
        """Leading bits, sign, other digits from high to low, without the zero bits."""
        top = 1 << (self.words.bits - 1)
        leading, low = divmod(word % top, 1 << self.n_low)
        turned = (leading << 1 | word // top) << self.n_low | low
        number, rest = divmod(turned, 1 << self.zero_bits)
        if rest:
            raise InvalidInput(f"a word whose low {self.zero_bits} bits are not zero")
        return number

    def word(self, number: int) -> int:
        turned = (number << self.zero_bits) % (1 << self.words.bits)
        leading_and_sign, low = divmod(turned, 1 << self.n_low)
        leading, is_negative = divmod(leading_and_sign, 2)
        return is_negative << (self.words.bits - 1) | leading << self.n_low | low


def alphabet(words: Words, zero_bits: int, n_leading: int = 0) -> Alphabet:
    """The escapes, then a symbol for each exponent and what leading digits it may have."""
    leading_bits = words.exponent_bits + n_leading
    width = words.bits - leading_bits - zero_bits
    return Alphabet((*ESCAPES, *((bits, width) for bits in range(1 << leading_bits))), stride=1)


def write_prelude(model: Model) -> bytes:
    fields = [(model.table.table_log, 4), (model.zero_bits, 6), (model.n_leading, 4)]
    return write_fields(fields + table_fields(model.table, stride=1))


def parse_prelude(words: Words, prelude: Buffer) -> Model:
    """The model; CorruptFrame where no encoder writes such a prelude."""
    require(words.is_float, "neuzip_lossless codes floats only")
    reader = BitReader(prelude)
    table_log = read_table_log(reader)
    zero_bits = reader.take(6)
    require(zero_bits <= words.mantissa_bits, f"{zero_bits} zero bits in every mantissa")
    n_leading = reader.take(4)
    require(
        n_leading <= words.mantissa_bits - zero_bits
        and words.exponent_bits + n_leading <= MOST_LEADING_BITS,
        f"{n_leading} leading digits in every mantissa",
    )
    table = read_table(reader, table_log, alphabet(words, zero_bits, n_leading))
    require(reader.take_rest() == b"", "the prelude goes on")
    return Model(words, zero_bits, table, n_leading)


def block_numbers(model: Model, source: Buffer) -> Numbers:
    numbers = [model.number(word) for word in model.words.read(source)]
    return Numbers(model.words.bits, [CONTEXT] * len(numbers), numbers)


def encode_block(model: Model, source: Buffer) -> bytes:
    """One coded block. It may be as long as the block or longer; then the block is kept raw."""
    return guarded(model.coder.encode([block_numbers(model, source)]))


def decode_block(model: Model, block: Buffer, n_words: int) -> bytes:
    """The words of a coded block; CorruptFrame where no encoder writes such a block."""
    reader = model.coder.open(unguarded(block))
    numbers = reader.take_sequence(model.words.bits, [CONTEXT] * n_words)
    reader.finish()
    return model.words.write([model.word(number) for number in numbers])
