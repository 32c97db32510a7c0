"""What `make dist` builds works where there is neither a compiler nor a checkout."""
