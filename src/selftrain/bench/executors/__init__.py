"""Where the cells of a bench run: processes on this machine, or a Ray cluster."""
