"""Self-contained HTML pages: the inspection page and the report of a run, also served while the run trains."""

REPORT = "report.html"  # in a run's folder
WATCH_PORT = 8765  # of the page of a run that is training, if no other program uses it
