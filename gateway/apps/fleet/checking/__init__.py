"""`gateway check`: what routes.yaml means, and whether the backends are as it says."""
