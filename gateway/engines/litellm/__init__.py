"""Clouds that speak an API of their own, through the litellm SDK."""
