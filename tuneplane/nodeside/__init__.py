"""The Node daemon: prepares, starts, watches, stops and cleans up members on one machine, and tells a gateway.

Read ``domain/member_table.py`` first: it is the protocol. Then ``driver`` (one task per member acts), ``effects`` (what
it does), ``journal`` (what it knows), ``session`` (what it says).

Long-lived tasks, all in the tree of :func:`.daemon.node_root`:

| task | owner | queues |
|---|---|---|
| one driver per member that has something left to do, and one log capture while it runs | pool ``members`` | none; a coalesced signal |
| the steward: journals and answers commands | ``node`` | ``stops`` 256, ``commands`` 256 |
| the inventory's look, every ``inventory_confirm`` seconds | ``node`` | none; the newest survey on the board |
| the session: dial, receive, report, resend, confirm inventory; its log reads | ``node`` | ``answers`` 512, the link's lanes |

A session answers at most 256 followed and 32 bounded log reads. The outbox of reports is a set of members. Blocking work
runs on four threads at most, one for each of journal, logs, other small files and looks at the workloads' network (which
starts a fifth, that ends, to enter another namespace); the storage root is only ever touched by child processes with a deadline.
"""
