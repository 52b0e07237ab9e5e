"""The coordinator: opens and commits epochs, owns the routing tables. Events in, instructions out."""
