"""Adapters (LoRA, Hu et al. 2021): training, saving, merging, and the files of peft."""
