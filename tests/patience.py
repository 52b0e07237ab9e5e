"""How long a test waits for what must happen: one limit for all, which a machine that is ten times slower keeps.

It is never what a test measures, and a suite in which all is well never waits for it. A wait that reaches it has found
something that hangs.
"""

PATIENCE = 600.0
