"""Turns desired state into actions. Knows devices, ranks and jobs; knows nothing of CUDA.

One folder per activity:

    source/     reads desired state from a directory or a git branch, validates and accepts it
    observe/    queries the state of proxies and launchers
    plan/       decides what to do next: pure, no I/O
    act/        carries out the actions of a plan
    journal/    the persistent state, in SQLite
    node/       the machine on which ranks run
    report/     status, tables and logs, for people and programs
    commands/   the commands of `rankfold`
    model/      records of desired, recorded and observed state, which the other folders share

`daemon` is the process, `loop` its loop (observe, plan, act), `requests` what it replies to
commands, which reach it through `client`.
"""
