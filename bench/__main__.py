"""The command line: ``python -m bench NAME [--json]``. Exit status 1 when a budget is missed."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable

from . import BENCHMARKS
from .figures import Figure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run one benchmark and print its figures.")
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--json", action="store_true", help="one JSON object per figure and line")
    arguments = parser.parse_args()
    figures: Iterable[Figure] = importlib.import_module(f"bench.{arguments.name}").figures()
    missed = 0
    for figure in figures:
        missed += not figure.holds
        print(json.dumps(figure.as_json()) if arguments.json else figure.as_text(), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
