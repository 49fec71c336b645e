"""All endpoints but the inference POSTs: what is polled without a framework, the rest with FastAPI.

FastAPI takes a quarter of a second to import and 10 MB, so it is imported by the first request that needs it: `app.py`
and the routers behind it, those of apps too, and nothing else, may import it at their top.
"""
