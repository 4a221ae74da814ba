"""The command line: parses, calls and draws. Nothing else in the spine prints, exits, or imports typer and rich."""
