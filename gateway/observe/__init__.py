"""The operator's view: logs, traces, events, alerts, history. Reads, never decides."""
