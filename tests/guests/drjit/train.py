"""A job of Dr.Jit: each rank fits a weight for each of its samples, which it draws anew at each
step, and prints a hash of them. Arguments: steps.

Dr.Jit uses every device that it sees; so each rank sees one.
"""

from __future__ import annotations

import hashlib
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]

import drjit as dr
import numpy as np
from drjit.cuda.ad import PCG32, Array3f, Float, UInt32

SAMPLES = 5000

draws = PCG32(size=SAMPLES, initstate=UInt32(int(os.environ["RANK"]) + 5))
samples = Array3f(draws.next_float32(), draws.next_float32(), draws.next_float32())
weights = Float(0.1) + dr.zeros(Float, SAMPLES)
for step in range(int(sys.argv[1])):
    dr.enable_grad(weights)
    found = dr.sin(samples.x * weights) + dr.sqrt(dr.square(samples.y) + samples.z) * weights
    dr.backward(dr.mean(dr.square(found - 1.0)))
    weights = dr.detach(weights) - 5.0 * dr.grad(weights)
    samples = Array3f(draws.next_float32(), dr.abs(samples.x - samples.y), samples.z * 0.99)
    dr.eval(weights, samples, draws)
    digest = hashlib.sha256(np.array(weights).tobytes() + np.array(samples).tobytes())
    print("step", step, digest.hexdigest()[:16], flush=True)
