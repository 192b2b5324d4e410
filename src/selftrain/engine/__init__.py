"""The training loop, with its runtime, optimiser, observers, evaluation and checkpoints.

Knows nothing of any method's name, of datasets or of run folders.
"""
