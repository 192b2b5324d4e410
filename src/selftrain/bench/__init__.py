"""Benches: datasets x methods x seeds, each cell run once, shown as a table."""
