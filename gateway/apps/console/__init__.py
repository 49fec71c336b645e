"""Views of a gateway in a terminal: its plans, its state, its usage, its alerts."""
