"""Parquet files, mixtures of texts, and token files of other programs."""
