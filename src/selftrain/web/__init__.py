"""Pages in the browser, served on this machine only: ``label`` and ``serve``.

Knows nothing of equations. The server process needs no torch.
"""
