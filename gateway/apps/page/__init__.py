"""The page, and what it shows: `/`, `/status` with its parts, `/events`."""
