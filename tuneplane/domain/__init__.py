"""Pure rules: values, typed ids, transition tables, placement, admission, and the ports other rooms implement.

Standard library and attrs only (``codec`` adds cattrs, the decoder of attrs values): no I/O, no clock, no
randomness, no logging, no Trio. Times come in as arguments: ``datetime`` in UTC on the control side.
This room has no long-lived task.
"""
