"""Runs features.py as if its tensors were in a GPU's memory: collectives get copies of them, and
workers that wait have theirs in those copies. Also tensors of a few bytes are parked."""

import pathlib

from rankfold.elastic import buckets, gpu

gpu.holds = lambda tensor: True
buckets.SMALL = 0
script = pathlib.Path(__file__).with_name("features.py")
exec(compile(script.read_text(), script, "exec"))
