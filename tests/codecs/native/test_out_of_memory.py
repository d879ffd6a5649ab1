"""A process that ran out of memory during one frame encodes the next one correctly."""

import subprocess
import sys

# While the frame is encoded for the first time, the process can allocate only 8 MiB more. Its one
# block needs more than that, because the stream may not fit into the buffer that is passed.
ENCODE_TWICE = """
import resource
from pathlib import Path
import numpy as np
from deltahub.codecs._native import FmDeltaEncoder

rows, columns = 16, 1 << 20
base = np.full((rows, columns), 0x3F80, "<u2")
tuned = base.copy()
tuned[::3] += 1
tuned.ravel()[:: 171] += 5
frame = tuned.tobytes(), base.tobytes()
encoder = FmDeltaEncoder(3, *frame, rows, columns, 1, b"", b"", 0, False)
room = bytearray(len(frame[0]))
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken + (8 << 20), limits[1]))
try:
    encoder.encode_all(16, 1, *frame, room, 1)
except MemoryError:
    print("no memory")
resource.setrlimit(resource.RLIMIT_AS, limits)
found = encoder.encode_all(16, 1, *frame, room, 1)
print(found == encoder.encode_all(16, 1, *frame, bytearray(len(room)), 2))
"""


def test_a_frame_is_encoded_by_a_thread_that_had_no_memory_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENCODE_TWICE], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "no memory\nTrue\n"), done.stderr
