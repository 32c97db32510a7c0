"""Compares energies and forces that OpenMM's kernels compute, in each precision, with those of its
own reference platform. Prints the number of comparisons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openmm as mm
from openmm import CustomNonbondedForce, GBSAOBCForce, NonbondedForce

ATOMS, EDGE, SIDE = 300, 2.6, 7
WORST = {"single": 1e-4, "mixed": 1e-4, "double": 3e-7}

draws = np.random.default_rng(5)
grid = np.indices((SIDE,) * 3).reshape(3, -1).T[:ATOMS] * (EDGE / SIDE)
places = grid + draws.normal(0, 0.01, (ATOMS, 3))
charges = [0.2 * (-1) ** atom for atom in range(ATOMS)]


def bonds() -> mm.Force:
    force = mm.HarmonicBondForce()
    for atom in range(0, ATOMS - 1, 3):
        force.addBond(atom, atom + 1, 0.35, 2000.0)
    return force


def angles() -> mm.Force:
    force = mm.HarmonicAngleForce()
    for atom in range(0, ATOMS - 2, 3):
        force.addAngle(atom, atom + 1, atom + 2, 2.0, 300.0)
    return force


def torsions() -> mm.Force:
    force = mm.PeriodicTorsionForce()
    for atom in range(0, ATOMS - 3, 4):
        force.addTorsion(atom, atom + 1, atom + 2, atom + 3, 1 + atom % 3, 0.5, 7.0)
    return force


def pairs(method: int) -> Callable[[], mm.Force]:
    def make() -> mm.Force:
        force = NonbondedForce()
        force.setNonbondedMethod(method)
        force.setCutoffDistance(0.9)
        for charge in charges:
            force.addParticle(charge, 0.3, 0.8)
        for atom in range(0, ATOMS - 1, 3):
            force.addException(atom, atom + 1, 0, 0.1, 0)
        return force

    return make


def solvent() -> mm.Force:
    force = GBSAOBCForce()
    for atom, charge in enumerate(charges):
        force.addParticle(charge, 0.15 + 0.01 * (atom % 4), 0.8)
    return force


def formula() -> mm.Force:
    force = CustomNonbondedForce("a*b*exp(-2*r)+erf(r)/r; a=s1+s2; b=sqrt(e1*e2)")
    force.addPerParticleParameter("s")
    force.addPerParticleParameter("e")
    force.setNonbondedMethod(CustomNonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(0.8)
    for atom in range(ATOMS):
        force.addParticle([0.1 * (atom % 3), 0.2 + 0.1 * (atom % 5)])
    return force


def charged() -> mm.Force:
    each, pair = mm.CustomGBForce.SingleParticle, mm.CustomGBForce.ParticlePair
    force = mm.CustomGBForce()
    force.addPerParticleParameter("q")
    force.addPerParticleParameter("r")
    all_pairs = mm.CustomGBForce.ParticlePairNoExclusions
    force.addComputedValue("I", "step(r+r2-r1)*0.1*exp(-r)", all_pairs)
    force.addComputedValue("B", "1/(1/r+I)", each)
    force.addEnergyTerm("-30*q*q/B", each)
    force.addEnergyTerm("-10*q1*q2/sqrt(r*r+B1*B2)", pair)
    for atom, charge in enumerate(charges):
        force.addParticle([charge, 0.15 + 0.01 * (atom % 4)])
    return force


def hydrogen() -> mm.Force:
    """In each round every lane adds to a sum of its own."""
    force = mm.CustomHbondForce("5*(distance(d1,a1)-0.3)^2*(1+cos(angle(d2,d1,a1)))")
    for atom in range(0, 60, 3):
        force.addDonor(atom, atom + 1, -1, [])
    for atom in range(60, 120, 2):
        force.addAcceptor(atom, -1, -1, [])
    force.setNonbondedMethod(mm.CustomHbondForce.CutoffPeriodic)
    force.setCutoffDistance(0.9)
    return force


def triples() -> mm.Force:
    force = mm.CustomManyParticleForce(
        3, "0.5*exp(-(distance(p1,p2)+distance(p2,p3)+distance(p1,p3)))"
    )
    force.setNonbondedMethod(mm.CustomManyParticleForce.CutoffPeriodic)
    force.setCutoffDistance(0.5)
    for _ in range(ATOMS):
        force.addParticle([], 0)
    return force


def computed(make: Callable[[], mm.Force], platform: str, **properties: str) -> list[np.ndarray]:
    system = mm.System()
    system.setDefaultPeriodicBoxVectors([EDGE, 0, 0], [0, EDGE, 0], [0, 0, EDGE])
    for atom in range(ATOMS):
        system.addParticle(12.0 + atom % 3)
    system.addForce(make())
    chosen = mm.Platform.getPlatformByName(platform)
    context = mm.Context(system, mm.VerletIntegrator(0.001), chosen, properties)
    context.setPositions(places)
    state = context.getState(energy=True, forces=True)
    forces = np.array(state.getForces(asNumpy=True)._value)
    return [np.array([state.getPotentialEnergy()._value]), forces]


FORCES = [
    bonds,
    angles,
    torsions,
    pairs(NonbondedForce.NoCutoff),
    pairs(NonbondedForce.CutoffNonPeriodic),
    pairs(NonbondedForce.CutoffPeriodic),
    solvent,
    formula,
    charged,
    hydrogen,
    triples,
]
compared = 0
for make in FORCES:
    wanted = computed(make, "Reference")
    for precision, worst in WORST.items():
        got = computed(make, "CUDA", Precision=precision)
        for one, other in zip(wanted, got, strict=True):
            error = np.abs(one - other).max() / max(1.0, np.abs(one).max())
            assert error < worst, (make.__name__, precision, error)
            compared += 1
print(compared, "compared")
