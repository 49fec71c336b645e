"""Clouds with their own API, through the litellm SDK."""
