"""`GET /`: what a person sees who opens the server's address in a browser."""

from starlette.responses import PlainTextResponse, Response

from minigpt.server.served_model import Models


def front_page(models: Models) -> Response:
    """The models and where to find what else there is."""
    names = [f"  {model.name}" for model in models.all] if models.are_loaded else ["  (being loaded)"]
    lines = [
        "minigpt",
        "",
        "models:",
        *names,
        "",
        "POST /v1/completions continues a text; /openapi.json lists the rest.",
    ]
    return PlainTextResponse("\n".join(lines) + "\n")
