"""`python cli.py ...` from a checkout does what the installed `minigpt` does."""

from minigpt.cli.app import main

if __name__ == "__main__":
    main()
