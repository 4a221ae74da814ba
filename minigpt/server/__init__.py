"""The HTTP server: serves models with the API of OpenAI's completions."""
