"""Which backends may serve a request, in which order, and why not the others. Pure functions."""
