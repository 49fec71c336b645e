"""Pictures described in words, for models that cannot see."""
