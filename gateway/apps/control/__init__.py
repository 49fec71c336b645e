"""Control of the fleet: switches of the mode, starts and stops of backends, by operators and for requests."""
