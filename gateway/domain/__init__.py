"""What every other package speaks of: requests, backends, their health and what they can do."""
