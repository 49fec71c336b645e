"""Several judges over the same lines: their batches, and where they disagree. The `gateway batch` commands use it."""

COMMANDS = {
    "batch": ("Run many requests from a file, and compare what several judges say.", "command:command"),
}
