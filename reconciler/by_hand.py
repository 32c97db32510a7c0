"""What a person may set by hand in a job: checked here, set by the daemon."""

from __future__ import annotations

from rankfold.control import ControlError
from rankfold.messages import DEVICES_MAX
from rankfold.reconciler.model import Job, Json, Record
from rankfold.reconciler.plan.fitting import fitting_devices
from rankfold.reconciler.rows import Object
from rankfold.reconciler.store import Store


def check(store: Store, each: Object, fields: Json, force: bool) -> None:
    """Whether these fields of a job may be set so now. Raises ControlError.

    force: also where the job is described in a source.
    """
    record = store.record(each.name) or Record(each.name)
    if each.source is not None and not force:
        raise ControlError(
            "from_source",
            f"{each.name} is described in {each.origin} ({each.source}): change it there, or "
            "use --override, which lasts until the object changes in the source",
        )
    if record.step == "ended":
        raise ControlError("ended", f"{each.name} is over")
    job = each.effective()
    assert isinstance(job, Job)
    gpus = fields.get("gpus")
    if gpus is not None and not 1 <= gpus <= min(job.world_size, DEVICES_MAX):
        most = f"worldSize ({job.world_size})" if job.world_size <= DEVICES_MAX else DEVICES_MAX
        raise ControlError("invalid", f"gpus must be from 1 to {most}, not {gpus}")
    if gpus is not None:
        devices = store.desired().devices().values()
        most = max(fitting_devices(devices, job, record).values(), default=0)
        if gpus > most:
            raise ControlError(
                "invalid",
                f"asks for {gpus} devices; the pools have {most} that {each.name} may use",
            )
    if each.removed and fields.get("suspend") is False:
        raise ControlError(
            "orphaned",
            f"{each.name} rests because {each.origin.file} no longer names it: put it back",
        )
