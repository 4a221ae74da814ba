"""Training runs: plan, start, resume, train; the same for the command line and Python."""
