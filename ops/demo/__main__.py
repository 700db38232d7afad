"""``./ops/up --demo``: the whole way on this machine, on real parts, with progress at each step.

It starts a registry, a Podman service of its own, ``tuneplane up`` and ``tuneplane-node serve``; enrols this machine in
the Fleet ``local``; trains a classifier on real images in a container; and stops a second, endless job. Everything it
starts lives below one temporary directory and is gone when it ends; only the built image is kept, below the data
directory. Exit status 0 and a last line ``demo: succeeded``, or 1 and a last line that says what failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from tuneplane.domain.errors import TuneplaneError

from . import steps
from .processes import DemoFailed

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./ops/up --demo")
    parser.add_argument("--data-dir", type=Path, default=ROOT / ".tuneplane-data", help="where the built image is kept")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            steps.run_demo(stack, arguments.data_dir.absolute() / "demo-cache", [ROOT / "examples/train_digits.py"])
            steps.say("tearing all down")
    except KeyboardInterrupt:
        print("demo: interrupted", flush=True)
        return 1
    except (DemoFailed, TuneplaneError, AssertionError, OSError) as error:
        print(f"demo: failed: {error}", flush=True)
        return 1
    print("demo: succeeded", flush=True)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
