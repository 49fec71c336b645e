"""Views of a gateway in a terminal: its plans, its state and its usage."""
