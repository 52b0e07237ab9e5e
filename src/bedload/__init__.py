"""Bedload."""
