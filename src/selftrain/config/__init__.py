"""Settings: every option with its type, default, help text and range.

Knows nothing of how a setting is carried out.
"""
