"""Each invariant of proxy and client, broken once."""
