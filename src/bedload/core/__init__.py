"""Ids, clock, errors and settings: what every layer shares and that imports no other layer."""
