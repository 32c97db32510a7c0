"""A rank's launcher: starts its program, hands the channel over, says when it ends."""
