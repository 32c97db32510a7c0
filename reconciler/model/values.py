"""Constraints on values in the journal and in messages. The schemas in schemas/ give the same
constraints for files.

Sizes are bytes. Times named ``*_at`` are seconds; a comment at the field names the clock:
``fleet time`` is the fleet's own time (reconciler/clock.py).
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from rankfold.job_limits import DEVICES_MAX, RANKS_MAX
from rankfold.messages import OWN_CC

Json = dict[str, Any]

ObjectName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")]
PlaceName = Annotated[str, Meta(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?\Z")]
DeviceName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\0]*\Z")]
Text = Annotated[str, Meta(pattern=r"^[^\0]*\Z")]
AbsolutePath = Annotated[str, Meta(max_length=4095, pattern=r"^/[^\0]*\Z")]
Ranks = Annotated[int, Meta(ge=1, le=RANKS_MAX)]
Devices = Annotated[int, Meta(ge=1, le=DEVICES_MAX)]
Memory = Annotated[int, Meta(ge=1, le=1 << 50)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]

# For devices whose file gives no compute capability: the software GPU has the highest whose PTX it
# covers, a real one its own, which its proxy reports. CPUs have none.
CAPABILITIES = {"soft": "12.0", "nvidia": OWN_CC, "cpu": "0.0"}


def most_devices(world_size: int) -> int:
    """The most devices that a job of so many ranks may request: a rank uses one device."""
    return min(world_size, DEVICES_MAX)


def too_many_devices(gpus: int, world_size: int) -> str:
    """The reason why a job of so many ranks cannot request so many devices, to follow the name of
    the field or option; empty: it can."""
    most = most_devices(world_size)
    if gpus <= most:
        return ""
    if most < world_size:
        return f"must be at most {most}, not {gpus}"
    return f"must be at most worldSize ({world_size}), not {gpus}: a rank uses one device"
