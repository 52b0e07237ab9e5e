"""Ready-made operators, built on the public interfaces of state and worker."""
