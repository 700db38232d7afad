"""The fault hook of the fault tests: kills this very process at one named point, or loses one answer.

``TUNEPLANE_FAULT=name:before|after|lost`` says where, ``TUNEPLANE_FAULT_ONCE=path`` makes it happen once: the marker
file is created (and its directory synced) before the process dies, and a restarted process that finds it does nothing.
Both are ignored unless ``TUNEPLANE_FAULT_TESTING=1``. ``TUNEPLANE_FAULT_SEEN=path`` also appends every point passed,
so that a test can prove that its point was reached.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from tuneplane.domain.faultpoint import FAULT_POINTS, AnswerLost, install_fault_hook

from .settings import WrongSetting

MOMENTS = ("before", "after", "lost")


def install_fault_hook_from(environ: Mapping[str, str]) -> None:
    """Install the hook that the environment asks for; nothing in production."""
    if environ.get("TUNEPLANE_FAULT_TESTING") != "1":
        return
    fault = environ.get("TUNEPLANE_FAULT", "")
    seen = environ.get("TUNEPLANE_FAULT_SEEN", "")
    if not fault and not seen:
        return
    name, _, moment = fault.partition(":")
    if fault and moment not in MOMENTS:
        raise WrongSetting("TUNEPLANE_FAULT", f"must look like name:{'|'.join(MOMENTS)}")
    once = environ.get("TUNEPLANE_FAULT_ONCE", "")
    marker = Path(once) if once else None
    seen_file = os.open(seen, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if seen else None

    def hook(passed: str, at: str) -> None:
        assert passed in FAULT_POINTS, f"fault point {passed} is not listed in domain.faultpoint"
        if seen_file is not None:
            os.write(seen_file, f"{passed}:{at}\n".encode())
        if passed != name or (at != moment and not (moment == "lost" and at == "after")):
            return
        if marker is not None and not _claim(marker):
            return
        if moment == "lost":
            raise AnswerLost(f"fault test: the answer of {passed} is lost")
        os.kill(os.getpid(), signal.SIGKILL)

    install_fault_hook(hook)


def _claim(marker: Path) -> bool:
    """Create ``marker`` durably; False when it exists, so that the fault has struck already."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    directory = os.open(marker.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return True
