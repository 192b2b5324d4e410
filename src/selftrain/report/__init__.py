"""Reports: one HTML page about runs, and the figures of the paper.

Reads run folders through ``selftrain.runs.layout`` and knows nothing of training. Only ``write_report(reference=True)``
asks ``selftrain.runs.bias`` to train a run to compare with.
"""

from selftrain.report.write import write_report

__all__ = ["write_report"]
