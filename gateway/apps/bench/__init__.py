"""`gateway bench`: how fast an alias or a server is, and what the gateway adds. The `bench/` suite shares its
`stats`."""

COMMANDS = {
    "bench": ("Measure how fast an alias or a server is, and what the gateway adds.", "command:command"),
}
