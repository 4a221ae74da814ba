"""Published benchmarks, each by protocols that are named, with the published figures of GPT-2 beside."""
