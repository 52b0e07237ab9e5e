"""How long a test waits for what must happen: one limit for all, which a machine that is ten times slower keeps.

It is never what a test measures, and a suite in which all is well never waits for it. A wait that reaches it has found
something that hangs.
"""

PATIENCE = 600.0


def start_patiently() -> None:
    """Have workers of this process's clusters take as long to start as they need, unless a test says otherwise."""
    from bedload.spark.attaching import attach

    assert attach.__kwdefaults__ is not None
    attach.__kwdefaults__["start_seconds"] = PATIENCE
