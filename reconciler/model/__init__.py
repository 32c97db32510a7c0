"""Desired, recorded and observed state as plain frozen records, which the other folders share."""
