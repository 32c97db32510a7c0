"""Fleets as people use them: everything real, through the command."""
