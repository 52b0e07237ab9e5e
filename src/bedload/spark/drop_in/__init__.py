"""``transformWithState`` on Bedload: a processor that was written for Spark runs here as it is.

::

    call.py        the call: Spark checks the arguments, and its own plan says what the input and the keys are
    sessions.py    the cluster that it runs on, and the name of the state
    key_parts.py   structs as keys: the columns that they are kept as
    shipped.py     a processor as bytes, with the broadcast variables that it uses
    declaring.py   the driver runs ``init`` once: which variables there are
    conversions.py Spark's types and values in state, and back, compiled once for a schema
    runtime.py     an epoch of one processor at one worker
    handle.py      the handle that a processor gets there: its variables and its timers
    variables.py   value, list and map state on the object of the current key: no message, no pickle
    rows.py        the rows of an epoch, by key, as Rows or DataFrames that are made when somebody looks
    outputs.py     what a processor yields, as columns
    initial.py     the rows of ``initialState``
    batch.py       the same in a task, for a DataFrame that does not stream
    take_over.py   the state that a query of Spark's left
    patching.py    ``bl.patch_pyspark()``

State of a processor is state like any other: an attribute of the key's object for each variable. So live reads,
checkpoints, moves and rollbacks have nothing to learn.
"""
