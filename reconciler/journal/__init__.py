"""The reconciler's persistent state: the journal, and how long it keeps what has ended."""
