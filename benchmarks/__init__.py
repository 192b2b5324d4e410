"""Speed benchmarks as ratios measured in one run: ``python -m benchmarks``, or ``make bench``.

Knows nothing of accuracy: ``selftrain bench`` measures that.
"""
