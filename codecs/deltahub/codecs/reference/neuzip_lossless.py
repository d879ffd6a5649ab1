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


@dataclass(frozen=True)
class Model:
    """What the prelude says."""

    words: Words  # of a float
    zero_bits: int  # lowest bits of every word's mantissa that are zero
    table: Table

    @property
    def coder(self) -> Coder:
        return Coder(alphabet(self.words, self.zero_bits), (self.table,))

    def number(self, word: int) -> int:
        """Exponent, sign, mantissa from high to low, without the low zero bits."""
        words = self.words
        is_negative = word >> (words.bits - 1)
        sign_and_mantissa = is_negative << words.mantissa_bits | words.mantissa(word)
        turned = words.exponent(word) << (words.mantissa_bits + 1) | sign_and_mantissa
        number, rest = divmod(turned, 1 << self.zero_bits)
        if rest:
            raise InvalidInput(f"a word whose low {self.zero_bits} bits are not zero")
        return number

    def word(self, number: int) -> int:
        words = self.words
        turned = (number << self.zero_bits) % (1 << words.bits)
        exponent, sign_and_mantissa = divmod(turned, 1 << (words.mantissa_bits + 1))
        is_negative, mantissa = divmod(sign_and_mantissa, 1 << words.mantissa_bits)
        return is_negative << (words.bits - 1) | exponent << words.mantissa_bits | mantissa


def alphabet(words: Words, zero_bits: int) -> Alphabet:
    """The escapes, then a symbol for each exponent."""
    width = words.bits - words.exponent_bits - zero_bits
    exponents = range(1 << words.exponent_bits)
    return Alphabet((*ESCAPES, *((exponent, width) for exponent in exponents)), stride=1)


def write_prelude(model: Model) -> bytes:
    fields = [(model.table.table_log, 4), (model.zero_bits, 6)]
    return write_fields(fields + table_fields(model.table, stride=1))


def parse_prelude(words: Words, prelude: Buffer) -> Model:
    """The model; CorruptFrame where no encoder writes such a prelude."""
    require(words.is_float, "neuzip_lossless codes floats only")
    reader = BitReader(prelude)
    table_log = read_table_log(reader)
    zero_bits = reader.take(6)
    require(zero_bits <= words.mantissa_bits, f"{zero_bits} zero bits in every mantissa")
    table = read_table(reader, table_log, alphabet(words, zero_bits))
    require(reader.take_rest() == b"", "the prelude goes on")
    return Model(words, zero_bits, table)


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
