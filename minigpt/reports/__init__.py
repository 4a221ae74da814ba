"""The report of a run: one offline HTML page, which is also written while the run trains."""

REPORT = "report.html"  # in a run's folder
