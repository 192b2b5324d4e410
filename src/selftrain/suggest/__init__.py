"""Which images to label next: typical ones before the first label, the most useful ones after a run.

Knows nothing of the command line or of pages on which images are labeled.
"""

from selftrain.suggest.suggest import Suggestion, Suggestions, suggest

__all__ = ["Suggestion", "Suggestions", "suggest"]
