"""The search for good settings on held-out labels."""
