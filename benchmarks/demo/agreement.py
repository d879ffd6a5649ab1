"""How often models predict the same next token: `agreement.py ORIGINAL REPOSITORY REVISION...`.

Loads the revisions from the hub of HF_ENDPOINT as any program does that knows nothing of DeltaHub,
and prints as JSON, for each, the share of tokens for which it and the model in the folder ORIGINAL
predict the same one.
"""

import argparse
import inspect
import json
import textwrap
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("original", type=Path)
    parser.add_argument("repository")
    parser.add_argument("revisions", nargs="+")
    arguments = parser.parse_args()

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(arguments.original, local_files_only=True)
    tokens = tokenizer(inspect.getsource(textwrap), return_tensors="pt").input_ids[:, :2000]

    def predicted(model: torch.nn.Module) -> torch.Tensor:
        parts = tokens[0].split(200)
        with torch.inference_mode():
            return torch.cat([model(part[None]).logits[0].argmax(-1) for part in parts])

    load = AutoModelForCausalLM.from_pretrained
    expected = predicted(load(arguments.original, dtype="auto", local_files_only=True))
    shares = {
        revision: (predicted(load(arguments.repository, revision=revision, dtype="auto"))
                   == expected).double().mean().item()
        for revision in arguments.revisions
    }  # fmt: skip
    print(json.dumps(shares))


if __name__ == "__main__":
    main()
