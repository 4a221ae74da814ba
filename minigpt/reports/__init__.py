"""Self-contained HTML pages: the inspection page and the report of a run, which is also kept while the run trains."""

REPORT = "report.html"  # in a run's folder
