"""Package data: OpenAI's GPT-2 merges."""
