"""Settings: every option of a run with its type, default, help text, range, and whether it changes results.

Knows nothing of what a setting does. ``settings`` declares them, ``regimes`` holds the defaults that differ between
regimes, ``resolve`` turns dotted names into settings, and ``options`` is the machinery that methods use as well.
"""
