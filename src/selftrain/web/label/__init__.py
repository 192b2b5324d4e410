"""``selftrain label``: from a folder of photos to a label file, and a model, in one sitting.

Knows nothing of equations: the page asks for images and gives answers, and a process beside it trains.
"""
