"""Where the cells of a bench are computed: processes on this machine, or a Ray cluster."""
