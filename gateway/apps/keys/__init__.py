"""The keys of clients: `gateway client` adds, rotates and removes them in routes.yaml."""
