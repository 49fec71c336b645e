"""The types that all other packages share: requests, backends, their health and their capabilities."""
