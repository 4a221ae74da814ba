"""The first module that the command imports: from here on, an interrupt ends the program without a traceback."""

try:
    from minigpt.cli.signals import exit_on_interrupt

    exit_on_interrupt()
except KeyboardInterrupt:
    raise SystemExit(130) from None


def main() -> None:
    from minigpt.cli import app

    app.main()
