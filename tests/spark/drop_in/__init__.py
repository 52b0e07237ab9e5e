"""Spark's ``transformWithState`` and Bedload's drop-in for it, side by side.

- ``engines``: runs one program on either engine, batch by batch, with a clock that the test moves.
- ``small``: behaviours of the handle, many in one query.
- ``cases`` and ``cases_*``: the list of behaviours, by section of Spark's API; the conformance table is made from it.
- ``programs``: processors that do what random lists of operations say.
"""
