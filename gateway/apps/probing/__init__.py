"""`gateway probe`: what backends do, seen with tiny real requests."""
