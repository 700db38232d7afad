"""The simulator: production trees of workers, gateways and Node daemons, in one process, on Trio's mock clock.

``python -m tests.sim --seeds N [--start S]``. Read ``world`` (one seed), ``judge`` (the invariants), ``fate`` (chance),
then what is replaced: ``clock``, ``loop`` and ``quick`` (time, scheduler), ``twin`` and ``weather`` (storage port), ``stream``
(bridge's calls, under the wire code), ``machine`` and ``engine`` (clocks, disk, container runtime), ``processes`` (lives,
deaths, fault points).

Long-lived tasks, all in the world's nursery: one a process and one a life of it,
users and troubles. A killed process loses all power at once (``fate.Life``); its actors unwind unseen on a copy of its disk.
"""
