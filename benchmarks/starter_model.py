"""Writes the starter model, the folder minigpt/starter/starter, from the run that trained it.

    minigpt train starter/*.txt --name starter ...      (the whole command is in the model card)
    python benchmarks/starter_model.py checkpoints/starter

The weights become bfloat16; of the tokenizer's files tokenizer.json stays; the record keeps the names of the texts
without their folders. README.md, the model card, is written by hand and kept.
"""

import argparse
import json
from pathlib import Path

import torch

from minigpt.starter import STARTER
from minigpt.storage.checkpoint import (
    CONFIG,
    GENERATION_CONFIG,
    TRAINING,
    WEIGHTS,
    config_files,
    load_checkpoint,
    weights_file,
)
from minigpt.storage.files import json_bytes
from minigpt.storage.folder import Folder
from minigpt.storage.names import plain_source

MOST_BYTES = 24_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of the finished run")
    run = parser.parse_args().run
    checkpoint = load_checkpoint(run, "cpu")
    record = json.loads((run / TRAINING).read_text(encoding="utf-8"))
    record["sources"] = [plain_source(source) for source in record["sources"]]
    record["corpus"].pop("path", None)
    target = STARTER.directory
    target.mkdir(exist_ok=True)
    folder = Folder(target)
    configs = config_files(checkpoint.model, checkpoint.tokenizer, dtype=torch.bfloat16)
    _, weights = weights_file(checkpoint.model, dtype=torch.bfloat16)
    folder.write(WEIGHTS, weights)
    for name in (CONFIG, GENERATION_CONFIG):
        folder.write(name, configs[name])
    folder.write(TRAINING, json_bytes(record))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        folder.write(name, (run / name).read_bytes())
    size = sum(path.stat().st_size for path in target.iterdir())
    print(f"{target}: {size:,} bytes, {checkpoint.model.config.n_parameters:,} parameters")
    if size > MOST_BYTES:
        raise SystemExit(f"that is more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
