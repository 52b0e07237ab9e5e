"""Applications on Bedload, each a package that runs with ``python -m examples.<name>`` from the project's root."""
