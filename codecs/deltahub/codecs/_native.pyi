"""Native kernels of deltahub.codecs."""



class FmDeltaEncoder:
    """The model of one frame, ready to encode its blocks."""

    def __init__(self, kind: int, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview) -> None:
        """
        Plans the model from all words of a frame. kind: see fm_delta.WORD_KINDS.

        ValueError unless source and base are as many words, at least one.
        """

    @property
    def prelude(self) -> bytes: ...

    @property
    def estimated_bytes(self) -> int:
        """What prelude and coded blocks will take, from a sample."""

    def encode(self, source: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview) -> bytes | None:
        """
        One block's stream: empty where it equals its base, None where coding does not pay.
        """

class FmDeltaDecoder:
    """A prelude's tables, ready to decode blocks."""

    def __init__(self, kind: int, prelude: bytes | bytearray | memoryview) -> None:
        """ValueError where no encoder writes such a prelude."""

    def decode(self, stream: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview, out: bytearray | memoryview) -> None:
        """
        Fills `out` with one block. ValueError where no encoder writes such a stream.
        """
