"""The memory of a node: whether the engines on it fit."""
