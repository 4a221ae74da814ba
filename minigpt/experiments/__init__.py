"""Functions given to `train()` or `fit()` that replace the loss, the optimizer, the schedule or the batches."""
