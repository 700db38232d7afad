"""Benchmarks: ``python -m bench NAME --json`` prints one JSON object per figure.

Every figure that has a budget is a ratio of two things measured in the same run, in interleaved rounds, each round's
ratio taken by itself and the median of them reported: so the machine's speed and its other load cancel out. To add
one, write ``bench/NAME.py`` with a function ``figures() -> Iterable[Figure]`` and add its name to ``BENCHMARKS``.
"""

BENCHMARKS = ("actors", "session", "launch", "gateway", "stop", "placement")
