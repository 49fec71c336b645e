"""What the core never imports: each package here can be deleted, and the gateway serves without it."""
