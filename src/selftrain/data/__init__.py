"""Data: what DATA means, splits, images, views and stored features.

Knows nothing of methods, networks or training.
"""
