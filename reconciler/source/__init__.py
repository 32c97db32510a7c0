"""Desired state: reads and validates it, and determines what a new revision changes."""
