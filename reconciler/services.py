"""How many replicas of each service run: follows the loads, and records it in the journal."""

from __future__ import annotations

from collections.abc import Mapping

from rankfold.policy.serving import Replicas, bounded, needed, scaled
from rankfold.reconciler import clock
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.desired import Desired, Service
from rankfold.reconciler.observe.loads import EVERY_S, Load, Loads
from rankfold.reconciler.wording import count

AT_REST_S = 1.0


def services_of(desired: Desired) -> dict[str, Service]:
    """The services that files describe, by name."""
    return {
        job.service.name: job.service
        for job in desired.jobs.values()
        if job.service is not None and not job.orphaned
    }


class Services:
    """The services of a fleet. Their numbers of replicas are in the journal."""

    def __init__(self, journal: Journal):
        self._journal, self._loads = journal, Loads()
        self._used: dict[str, Load] = {}  # by the last update

    def changed(self) -> bool:
        """Whether a load has changed since the last update."""
        return bool(self._used) and self._loads.of(self._used) != self._used

    def follow_s(self) -> float:
        """Seconds until `changed` should be asked again."""
        return EVERY_S if self._used else AT_REST_S

    def update(self) -> None:
        """Follow the loads. A service whose load is not known keeps its replicas. Raises
        sqlite3.Error."""
        journal = self._journal
        services = {
            name: each for name, each in services_of(journal.desired()).items() if each.load
        }
        before: dict[str, Replicas] = journal.get("replicas", {})
        if not services and not before:
            self._used = {}
            return
        loads = self._used = self._loads.of(each.load for each in services.values())
        now = {
            name: found
            for name, each in services.items()
            if (found := _next(each, before.get(name), loads[each.load], clock.now())) is not None
        }
        problems = {name: loads[each.load].problem for name, each in services.items()}
        problems = {name: problem for name, problem in problems.items() if problem}
        if now == before and problems == journal.get("load_problems", {}):
            return
        with journal.transaction():
            journal.set("replicas", now)
            journal.set("load_problems", problems)
            self._record_events(services, before, now, loads, problems)

    def close(self) -> None:
        self._loads.close()

    def _record_events(
        self,
        services: Mapping[str, Service],
        before: Mapping[str, Replicas],
        now: Mapping[str, Replicas],
        loads: Mapping[str, Load],
        problems: Mapping[str, str],
    ) -> None:
        for name, service in services.items():
            number = bounded(now.get(name), service.least, service.most)
            earlier = bounded(before.get(name), service.least, service.most)
            value = loads[service.load].value
            if number != earlier and value is not None:
                text = f"{earlier} → {count(number, 'replica')}: the load is {value:g}"
                self._journal.event(f"Service/{name}", "Scaled", text)
        for name, problem in problems.items():
            text = f"{problem}; the number of replicas stays as it is"
            self._journal.event(f"Service/{name}", "LoadUnknown", text, "Warning")


def _next(service: Service, before: Replicas | None, load: Load, now: float) -> Replicas | None:
    if load.value is None:
        return before
    wanted = needed(load.value, service.per_replica, service.least, service.most)
    return scaled(before, wanted, now, service.fall_delay_s)
