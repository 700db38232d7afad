"""Composition roots and command lines: the only room that opens root nurseries, reads settings, wires ports to their
implementations, and installs logging, signal handlers and the fault hook.

Long-lived tasks (one ``trio.run`` a process):

| process | tree | owner |
|---|---|---|
| ``tuneplane up`` | embedded PostgreSQL, then one system ``tuneplane`` with worker, gateway and web | :mod:`.up` |
| ``tuneplane api`` / ``gateway`` / ``worker`` | one system with that one subtree | :mod:`.roots` |
| ``tuneplane-node serve`` | one system ``node`` | :mod:`.node_cli` |

Next to each system runs one task that turns SIGTERM and SIGINT into a bounded stop (:func:`.process.run_until_stopped`).
There are no queues here. The client commands (:mod:`.client_commands`) are plain synchronous HTTP.
"""
