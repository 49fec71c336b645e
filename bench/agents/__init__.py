"""`make bench-agents`: where requests of agents go, and what that costs their engines."""
