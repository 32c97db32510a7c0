"""Carries out the actions of the plan."""
