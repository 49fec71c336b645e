"""Warm standby: the models of fallbacks that load on demand are loaded before the first request comes."""
