"""Several judges over the same lines: their batches, and where they disagree. What the `gateway batch` commands use."""
