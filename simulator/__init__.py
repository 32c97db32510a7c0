"""Runs the schedulers of policy/ on the jobs of a trace, in simulated time.

Reads traces, follows each job from its arrival to its end, and reports how long jobs took and what
the devices did. It has no part in a fleet: it knows neither the reconciler nor processes.
"""
