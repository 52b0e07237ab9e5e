"""Durable state: the files under one URL by which state survives its workers, and how they are read back.

::

    Storage     files under a root that appear whole (local folder, object store)
    records     the JSON files: format, claims, schemas, turns, manifests;  paths: where each file is
    History     which turns there are, which state builds upon which, what restores what (pure)
    Checkpoint  the folder as a whole: format, generations, schemas, turns, garbage, export

Nothing here knows of messages, workers or Spark. All files are immutable and appear whole, so a reader never needs a
lock; which files exist decides what counts.
"""
