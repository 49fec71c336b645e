"""`gateway fleet plan`: the memory of every node."""
