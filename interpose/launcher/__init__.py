"""A rank's launcher: starts its program, hands its channel over, reports when it ends."""
