"""Tuneplane: training, evaluation and serving on fleets of machines, run by supervised Trio actors.

The rooms of the house, and who may import whom, are described in ``docs/map.md``; ``tests/tidy`` enforces them.
"""

__version__ = "0.1.0"
