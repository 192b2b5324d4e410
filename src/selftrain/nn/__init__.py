"""Networks: backbones, psi and heads, weight averages, normalisation.

Knows nothing of data or of any method's equations.
"""
