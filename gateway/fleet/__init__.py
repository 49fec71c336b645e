"""The Sparks behind the gateway: memory planned, switches and starts decided, the commands for them."""
