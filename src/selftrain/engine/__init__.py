"""The only training loop, and what stands around it: runtime, optimiser, observers, checkpoints.

Knows nothing of any method's name.
"""
