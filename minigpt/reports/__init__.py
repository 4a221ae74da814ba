"""Self-contained HTML pages: the inspection page and the report of a run."""

REPORT = "report.html"  # in a run's folder
