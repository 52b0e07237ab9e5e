"""Ids, clock, errors, an epoch's time and figures: what every layer shares. It imports no other layer."""
