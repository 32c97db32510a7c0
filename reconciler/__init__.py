"""Desired state in, actions out. Knows devices, ranks and jobs; nothing of CUDA.

One folder per activity:

    source/     reads desired state from a directory or a git branch, validates and accepts it
    observe/    asks proxies and launchers what they do
    plan/       decides what to do next: pure, no I/O
    act/        carries out the actions of a plan
    journal/    what is remembered on disk
    node/       the machine on which ranks run
    report/     status, tables and logs, for people and programs
    commands/   the commands of `rankfold`
    model/      desired, recorded and observed state, as the other folders know them

`daemon` runs the loop: observe, plan, act. `client` is how commands reach it.
"""
