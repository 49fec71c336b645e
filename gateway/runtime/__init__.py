"""Builds the objects of one gateway process, hands them down, and reloads routes.yaml."""
