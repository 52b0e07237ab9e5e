"""Moving state while the query runs: strategies, plans, and the two ends of a transfer. Pure: no I/O, no own clock.

::

    RoutingTable ──plan──▶ lots ──Sender──▶ Ship… ──Receiver──▶ rows go on
                                  old owner            new owner

What a strategy is, is said in :mod:`bedload.migration.strategies`; who decides when ownership flips, in
:mod:`bedload.control.transfer`.
"""

from bedload.migration.strategies import AUTO, STRATEGIES, Auto, Strategy, strategy_named

__all__ = ["AUTO", "STRATEGIES", "Auto", "Strategy", "strategy_named"]
