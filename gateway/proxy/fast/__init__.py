"""The fast lane of a whole request: decided as an earlier one was, and served without a task."""
