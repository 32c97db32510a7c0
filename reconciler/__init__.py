"""Desired state in, actions out. Knows devices, ranks and jobs; nothing of CUDA.

One activity per module: `spec` reads desired state, `observe` asks proxies and launchers, `plan`
decides (no I/O), `act` executes and journals in `store`, `daemon` runs that loop, `watch` follows
a directory or a git branch, `report` and `cli` talk to people. `model` is their vocabulary.
"""
