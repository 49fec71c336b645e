"""Who may ask, and when: access, queues, slots and leases."""
