"""The command line; the only place that prints, exits, or imports typer and rich."""
