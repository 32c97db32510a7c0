"""A device's memory: what ranks request runs concurrently, and no rank waits forever."""
