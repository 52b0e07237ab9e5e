"""Benchmarks: `python -m bench.<name>`, each Bedload beside its peers in one run.

Every benchmark measures each system in a process tree of its own (`isolate`), on the same
deterministic rows (`source`), after checking that the system's answers are right, and ends in the
same table and JSON form (`report`).
"""
