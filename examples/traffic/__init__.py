"""The demo: cars report their speed, an operator keeps each car's trip, a terminal shows it live.

Run it with ``python -m examples.traffic`` (or ``make demo``). It uses the public API alone, and it ends by
checking every result against an oracle that uses neither Bedload nor Spark.

- ``reports``: the rows, as a pure function of a seed and row numbers
- ``source``: the same rows as a Spark streaming source
- ``operators``: the operator, ``Trip``
- ``oracle``: what the state and the outputs must be in the end
- ``check``: the comparison of both
- ``measure``: what Spark and the cluster report, as one snapshot
- ``view``: a snapshot as a picture or as a line
- ``session``: a quiet Spark session
- ``__main__``: the command line and the run
"""
