"""Promise: a checkpoint restores what was saved, or reports the damage; no collection removes what
a save or restore needs."""
