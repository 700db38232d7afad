"""The control plane's actors and application services. They take the ports of ``domain``; rows and frames stay outside.

Long-lived tasks, by supervision tree (every one is an actor, so every one can be seen, traced and cancelled):

``worker`` (:func:`worker.worker_root`; any number of processes share one database)

| actor | what it does | wakes on | queues |
|---|---|---|---|
| ``lookout`` | what the workers see of the Nodes; the mass-failure brake; the end of storage cordons | ``look``: timer | none |
| ``launches`` (pool) ``<attempt>.<epoch>`` | drives one attempt by looking | ``look``: poke, timer | none; 512 actors, 4 look at once |
| ``consumer`` | claims and renews, pokes launches | ``look``, ``claim``: pokes; ``renew``: timer | none; 32 claims a look |
| ``allocator`` | waiting jobs to plans and holds, or to a reason | ``look``: JOBS | none; 500 jobs a look |
| ``retention`` | Forget commands for what ended long ago | ``look``: timer | none; 500 members a look |

``gateway`` (:func:`gateway.gateway_root`)

| actor | what it does | wakes on | queues |
|---|---|---|---|
| ``relay`` | log reads for other processes, mutual TLS | connections | ``address`` 8; 256 reads |
| ``presence`` | gateway row and lease; rows against sessions | ``renew``: timer; ``compare``: SESSIONS | none |
| ``sessions`` (pool) ``<node>.<epoch>`` | one Node session | frames, letters, ``store``, ``watch``, ``sweep`` | see below |
| ``dispatcher`` | unsent commands to the sessions' mailboxes | ``look``: COMMANDS, sessions | none; 1024 commands a look |
| ``listener`` | accepts Nodes | connections | ``address`` 8; 16 greetings at once |

A session has the mailboxes ``stops`` 64, ``commands`` 64 and ``logs`` 16, an inbox of 1024 coalesced frames, and at most
16 log readers with a bounded ring each. All of these wait in rows or at the Node when they are full; nothing is lost.
"""
