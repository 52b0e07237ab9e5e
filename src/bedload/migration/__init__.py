"""Moving state while the query runs: strategies, plans, and the two ends of a transfer. Pure: no I/O, no own clock.

::

    RoutingTable ──plan──▶ lots ──Sender──▶ Ship… ──Receiver──▶ rows go on
                                  old owner            new owner

:mod:`bedload.migration.strategies` says what a strategy is; :mod:`bedload.control.transfer` decides when ownership
flips.
"""

from bedload.migration.strategies import AUTO, STRATEGIES, Auto, Strategy, strategy_named

__all__ = ["AUTO", "STRATEGIES", "Auto", "Strategy", "strategy_named"]
