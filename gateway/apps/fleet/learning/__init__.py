"""`gateway fleet learn`: what engines and nodes say of their memory, written into routes.yaml."""
