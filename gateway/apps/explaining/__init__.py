"""Where a request would be sent now, and why not elsewhere: `POST /admin/explain`, and `gateway explain`."""
