"""The kinds of DATA: folders, label files, arrays, tar shards, Hugging Face, datasets by name.

Knows nothing of splits or training.
"""
