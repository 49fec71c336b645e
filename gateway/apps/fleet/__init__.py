"""What an operator asks about the fleet: launch blocks checked, files rendered, nodes looked at before a start."""
