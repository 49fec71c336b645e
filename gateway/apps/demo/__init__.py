"""A simulated fleet on this machine: `gateway demo`, and single servers of it."""
