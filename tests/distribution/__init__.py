"""The files that `make dist` builds work without a compiler and a checkout."""
