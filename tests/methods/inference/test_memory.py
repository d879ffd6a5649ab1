"""What a model with compressed weights takes of memory while it runs."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import coding
from deltahub.codecs.exports.file import FILE_NAME, export_metadata, part_name
from deltahub.codecs.files.new_header import new_header
from support.models.exported import coded_parts

LAYERS, WIDTH = 24, 1536
LAYER_BYTES = 2 * WIDTH * WIDTH

# Memory of the process that no file backs, sampled while the model runs: in MiB, without what it
# took before.
RUN = f"""
import sys, threading, time
from pathlib import Path
import torch
from torch import nn
from deltahub.codecs.exports.file import map_export
from deltahub.methods.inference.model import load_into, resident_bytes

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

torch.set_num_threads(1)
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})))
model = model.bfloat16()
warm = nn.Linear(64, 64).bfloat16()(torch.zeros(4, 64).bfloat16())
before, peak, running = anonymous(), 0, True

def watch():
    global peak
    while running:
        peak = max(peak, anonymous())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
load_into(model, map_export(Path(sys.argv[1])))
with torch.no_grad():
    for _ in range(2):
        found = model(torch.ones(4, {WIDTH}).bfloat16())
running = False
watcher.join()
print(peak - before, resident_bytes(model), float(found.float().norm()))
"""


def test_a_pass_takes_two_layers_beside_the_compressed_weights(tmp_path: Path) -> None:
    torch.manual_seed(3)
    how = coding(DType.BF16, 3, 0)
    stored, data, told = [], [], {}
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).bfloat16()
    for i, layer in enumerate(model):
        name, weight = f"{i}.weight", layer.get_parameter("weight")
        told[name] = tuple(weight.shape), how
        for part, frames in coded_parts(weight.detach(), how).items():
            stored.append((part_name(name, part), "U8", (len(frames),)))
            data.append(frames)
    path = tmp_path / FILE_NAME
    path.write_bytes(new_header(stored, export_metadata(told)) + b"".join(data))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path)], check=True, capture_output=True, text=True
    )
    peak, resident, norm = map(float, done.stdout.split())
    # The mapped file is the compressed weights; beside it lie two layers, and what the allocator,
    # activations and threads take.
    assert peak < 2 * LAYER_BYTES + (12 << 20)
    assert resident < 0.45 * LAYERS * LAYER_BYTES
    assert peak < 0.3 * LAYERS * LAYER_BYTES
    assert norm > 0
