"""Random faults on real Spark for as long as one likes: ``python -m tests.soak --seconds 600 --seed 7``.

A *round* is one checkpoint with both operators of :mod:`tests.spark.tally` and Spark's own file sink, and mostly a
third query beside them (:mod:`tests.spark.apps.beside`) with two operators, epochs without rows, and a sink that fails
after a seal. State is moved about meanwhile. The application is started several times, each time with other workers,
and meets faults at random moments:

- workers killed, one or all; workers stopped (``SIGSTOP``), for a while or for good;
- packets lost, and the links of a worker or of the driver cut for a while (see :mod:`tests.soak.links`);
- executors killed, where there is a cluster; the store failing, slow or away for a while;
- the driver or its JVM killed.

The last start runs to an end, and then state and the whole output of the sinks must be those of an oracle that never
failed.

What is drawn follows from the seed and the number of the round; how it meets what Spark does at that moment does not.
So a seed that failed fails again mostly, not surely: its folder is kept.
"""
