"""The training loop and its parts: steps, losses, optimizers, evaluation, checkpoints, events."""
