"""Several judges over the same lines: their batches, and where they disagree. The `gateway batch` commands use it."""
