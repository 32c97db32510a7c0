"""What the reconciler remembers on disk: the journal, and how long it keeps what has ended."""
