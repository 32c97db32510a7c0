"""Desired state in, actions out. Knows devices, ranks and jobs; nothing of CUDA.

One activity per module: `spec` reads desired state, `observe` asks proxies and launchers, `plan`
decides (no I/O), `act` executes and journals in `store`, `daemon` runs that loop; `watch` reads a
directory or a git branch beside it, `sources` accepts what was read. `report`, `console` and `cli`
talk to people, `watching` is the command that outlives whatever may pass. `model` is their
vocabulary.
"""
