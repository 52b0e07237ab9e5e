"""Durable state: what is written under one URL so that state survives its workers, and how it is read back.

::

    Storage     files under a root that appear whole (local folder, object store)
    records     the JSON files: format, claims, schemas, turns, manifests;  paths: where each file is
    History     which turns there are, which state builds upon which, what restores what (pure)
    Checkpoint  the folder as a whole: format, generations, schemas, turns, garbage, export

Nothing here knows of messages, workers or Spark. All files are immutable and appear whole, so a reader
never needs a lock; what counts is decided by which files exist.
"""
