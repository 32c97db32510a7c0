"""A job of OpenMM: each rank moves 125 atoms with constraints and random forces, and prints a hash
of where they are and how fast at each tenth step. Arguments: steps.

OpenMM uses the first device that it sees; so each rank sees one.
"""

import hashlib
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]

import numpy as np
import openmm as mm

SIDE, APART = 5, 0.4

rank = int(os.environ["RANK"])
places = np.indices((SIDE,) * 3).reshape(3, -1).T * APART
atoms = len(places)
edge = SIDE * APART
system = mm.System()
system.setDefaultPeriodicBoxVectors([edge, 0, 0], [0, edge, 0], [0, 0, edge])
pairs = mm.NonbondedForce()
pairs.setNonbondedMethod(mm.NonbondedForce.CutoffPeriodic)
pairs.setCutoffDistance(0.9)
for atom in range(atoms):
    system.addParticle(20.0 + atom % 3)
    pairs.addParticle(0.1 * (-1) ** atom, 0.3, 0.5)
for atom in range(0, atoms - 1, 5):
    system.addConstraint(atom, atom + 1, APART)
system.addForce(pairs)
integrator = mm.LangevinMiddleIntegrator(300.0, 2.0, 0.002)
integrator.setRandomNumberSeed(rank + 1)
context = mm.Context(
    system,
    integrator,
    mm.Platform.getPlatformByName("CUDA"),
    {"Precision": "mixed", "DeterministicForces": "true"},
)
context.setPositions(places)
context.setVelocitiesToTemperature(300.0, rank + 1)
for step in range(0, int(sys.argv[1]), 10):
    integrator.step(10)
    state = context.getState(positions=True, velocities=True)
    digest = hashlib.sha256(state.getPositions(asNumpy=True)._value.tobytes())
    digest.update(state.getVelocities(asNumpy=True)._value.tobytes())
    print("step", step, digest.hexdigest()[:16], flush=True)
