"""The Sparks behind the gateway: launch blocks checked, memory planned, units rendered, nodes looked at."""
