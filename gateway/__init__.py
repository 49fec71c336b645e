"""An OpenAI-compatible gateway for fleets of DGX Sparks."""

import sys

# httpx imports its command line, and with it rich and pygments (5 MB), wherever these are installed; it does without
# where the import fails, and this makes it fail.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None is how an import is made to fail

__version__ = "0.3.0"
