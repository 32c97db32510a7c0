"""A job of Taichi: each rank moves bodies that attract each other, and draws random numbers on the
device; it prints a hash of all at each step. Arguments: steps.
"""

import hashlib
import os
import sys

import taichi as ti

ti.init(
    arch=ti.cuda, random_seed=int(os.environ["RANK"]) + 1, device_memory_GB=0.02, log_level=ti.ERROR
)
assert ti.lang.impl.current_cfg().arch == ti.cuda, "it computes on the CPU"

BODIES = 128

places = ti.Vector.field(3, ti.f32, BODIES)
speeds = ti.Vector.field(3, ti.f32, BODIES)
drawn = ti.field(ti.f32, BODIES)


@ti.kernel
def begin():
    for i in places:
        places[i] = ti.Vector([ti.random(), ti.random(), ti.random()])
        drawn[i] = ti.random()


@ti.kernel
def push(dt: ti.f32):
    for i in places:
        force = ti.Vector([0.0, 0.0, 0.0])
        for j in range(BODIES):
            apart = places[j] - places[i]
            force += apart / (apart.norm_sqr() + 0.01) ** 1.5
        speeds[i] += dt * force / BODIES
    for i in places:
        places[i] += dt * speeds[i]


@ti.kernel
def draw():
    for i in drawn:
        drawn[i] += 0.001 * (ti.random() - 0.5)


begin()
for step in range(int(sys.argv[1])):
    push(0.01)
    draw()
    digest = hashlib.sha256(places.to_numpy().tobytes() + drawn.to_numpy().tobytes())
    print("step", step, digest.hexdigest()[:16], flush=True)
