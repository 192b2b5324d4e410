"""Weak, strong and clean views of images, and the stream of training batches.

Knows nothing of methods.
"""
