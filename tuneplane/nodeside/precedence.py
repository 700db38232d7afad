"""The daemon goes before what it watches over: a busy machine must not silence it (L-B11).

Workloads carry a raised OOM score (``engine_specs.OOM_SCORE``) and the default weight; here the daemon asks for the opposite.
Both need privileges that a daemon in a container may lack: what is refused is told, and the daemon works on without it.
"""

from __future__ import annotations

import os
from pathlib import Path

NICE = -5  # earlier on a core than workloads of the default 0; not so early that a looping daemon would starve the machine
OOM_SCORE = -500  # the last to be killed but for what the system itself protects; dockerd gives itself the same
OOM_FILE = Path("/proc/self/oom_score_adj")


def take_precedence() -> tuple[str, ...]:
    """Raise this thread's priority (threads made later have it too) and lower this process's OOM score. What was refused."""
    refused = []
    try:
        os.setpriority(os.PRIO_PROCESS, 0, max(-20, os.getpriority(os.PRIO_PROCESS, 0) + NICE))
    except OSError as error:
        refused.append(f"a higher priority: {error.strerror}")
    try:
        if int(OOM_FILE.read_text()) > OOM_SCORE:  # a service manager may have set a lower one
            OOM_FILE.write_text(str(OOM_SCORE))
    except OSError as error:
        refused.append(f"a lower OOM score: {error.strerror}")
    return tuple(refused)
