"""What a proxy costs: CPU per request and per chunk, memory, added latency. `python -m bench --help`; not shipped."""
