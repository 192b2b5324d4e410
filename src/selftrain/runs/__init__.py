"""Runs: from data and settings to a run folder, and what a finished run folder can do.

Knows nothing of benches, sweeps, reports or the command line.
"""
