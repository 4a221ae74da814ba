"""LAMBADA, HellaSwag, CBT and language-modeling benchmarks."""
