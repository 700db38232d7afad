"""The one border to asyncio: the only importer of asyncio, trio_asyncio, grpclib, asyncpg and triopg.

:mod:`.loop` opens the asyncio loop of the process, :mod:`.grpc` serves gRPC calls and :mod:`.dial` makes them, :mod:`.postgres` reaches the
database. What comes out is Trio's: tasks in the caller's own scopes, cancellation by scope, plain exceptions.

Long-lived tasks, and who owns them:

* the asyncio loop: one Trio task inside ``open_bridge``, owned by the process root;
* per server (``serve_calls``): an accept task per address and one that drops overdue strangers, children of the caller;
  one task per call, in a nursery of the server that is shielded until the calls have said goodbye; one asyncio task per
  call, which waits for its end because grpclib wants it so;
* per outgoing call (``open_call``): one asyncio task, gone when the block is left.

Queues, all bounded: per call the outgoing lanes (the caller's limits) and at most one HTTP/2 window and one message of
what was received and not yet taken; 256 calls between the asyncio side and their task; 256 strangers.
"""
