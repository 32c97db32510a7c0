"""Desired state: where it comes from, what it says, and what a new revision changes."""
