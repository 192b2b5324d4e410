"""``selftrain serve``: a page and a JSON endpoint on which a trained model answers.

Knows nothing of training.
"""
