"""Features of a frozen backbone: extracted once per image and stored on disk.

Knows nothing of methods or training.
"""
