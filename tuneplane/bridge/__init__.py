"""The one border to asyncio: the only importer of asyncio, trio_asyncio, grpclib, asyncpg and triopg.

Long-lived tasks: the asyncio loop itself, one Trio task inside :func:`tuneplane.bridge.loop.open_bridge`, owned by the
process root.
"""
