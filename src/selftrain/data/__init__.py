"""Pictures in, batches of views out. Knows nothing of methods beyond the views they ask for."""
