"""Numbers with their units, as text: bytes, counts, durations."""


def size(n_bytes: float) -> str:
    """A number of bytes, in decimal units: 1.2 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def shown_loss(value: float) -> str:
    """A loss in nats per token or bits per byte: 2.3105."""
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.3g}"


def shown_perplexity(value: float) -> str:
    """A perplexity: 1,234.56, or 1.2e+64 of a model that has learned nothing of the text."""
    return f"{value:,.2f}" if value < 1e6 else f"{value:.3g}"


def count(number: int, noun: str) -> str:
    """A count and its noun: 1 token, 1,200 tokens."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """A duration as minutes and seconds, with hours if there are any: 0:07, 12:40, 1:02:03."""
    total = round(seconds)
    hours, minutes, rest = total // 3600, total // 60 % 60, total % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
