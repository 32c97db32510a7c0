"""A device's memory: what ranks ask for goes on side by side, and nobody waits for ever."""
