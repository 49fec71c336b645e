"""An OpenAI-compatible gateway for fleets of DGX Sparks."""

__version__ = "0.1.0"
