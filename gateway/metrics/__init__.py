"""The counters that every layer adds to; Prometheus reads them."""
