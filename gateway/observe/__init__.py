"""What operators see: logs, traces, events, alerts, history. Reads, never decides."""
