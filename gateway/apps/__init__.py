"""Applications on top of the core, which never imports them: each package can be deleted, and the gateway serves
without it."""
