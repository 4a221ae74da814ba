"""Trains with two workers of Ray Train, in a folder that they share: python ray_train.py FOLDER STEPS."""

import sys
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

import minigpt
from minigpt.distributed.process_group import init_world
from minigpt.storage.run import Run


def work(job: dict[str, Any]) -> None:
    world, folder = init_world(), Path(job["folder"])
    corpus = minigpt.Corpus.build([folder / "corpus.txt"], "bpe:512", cache=folder / "cache")
    model = minigpt.GPT(minigpt.PRESETS["nano"].replace(vocab_size=corpus.tokenizer.vocab_size))
    path, run = folder / "checkpoints" / "ray", None
    resume = path.exists()
    if world.is_main:
        run = Run.open(path) if resume else Run.create(path, model, corpus.tokenizer)
    config = minigpt.TrainConfig(steps=job["steps"], batch_size=8, eval_every=50)
    for event in minigpt.train(model, corpus, config, run, resume=resume, world=world):
        if isinstance(event, minigpt.Evaluation):
            ray.train.report({"step": event.step, "bits_per_byte": event.bits_per_byte})


if __name__ == "__main__":
    cuda = torch.cuda.is_available()
    TorchTrainer(
        work,
        train_loop_config={"folder": str(Path(sys.argv[1]).resolve()), "steps": int(sys.argv[2])},
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if cuda else "gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=cuda),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()
