"""Decides which job gets which devices. Pure: no files, processes, clocks, random numbers.

`decide` is called by the planner with what it observed. It imports nothing of the reconciler, so
that a simulator can call it, too.
"""
