"""What driver, workers and feeders say to each other, and the feeder's side of it.

Messages are plain data; the machines that exchange them (:mod:`bedload.control`,
:mod:`bedload.worker` and :class:`~bedload.protocol.feeder.FeederSession`) do no I/O, so the same
code runs over sockets, in one process, and in the simulator.
"""
