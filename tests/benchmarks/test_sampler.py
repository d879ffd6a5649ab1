"""The sampler sees what processes take, and whose children they are."""

import subprocess
import sys

from benchmarks.memory.sampler import Sampler, memory_bytes, tree, wait_until

MIB = 1 << 20
_HUNGRY = """
import sys, time
block = bytearray(80 << 20)
end = time.process_time() + 0.3
while time.process_time() < end: pass
print("full", flush=True)
sys.stdin.read()
"""


def test_peak_and_cpu_time_of_a_process_are_seen() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HUNGRY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with Sampler(lambda: {"client": list(tree(process.pid))}) as sampler:
        assert process.stdout.readline() == b"full\n"
        assert wait_until(lambda: memory_bytes(process.pid) > 80 * MIB, timeout_s=10)
    process.communicate()
    process.stdout.close()
    assert 80 * MIB < sampler.usage["client"].peak_bytes < 200 * MIB
    assert sampler.usage["client"].cpu_s >= 0.25


def test_a_process_that_is_gone_takes_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert memory_bytes(process.pid) == 0
    assert list(tree(process.pid)) == [process.pid]
