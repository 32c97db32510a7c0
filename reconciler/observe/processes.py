"""Follows proxies and launchers: records events for those that end or do not answer, and finds bad
devices, whose proxy ends whenever it is started.

The loop calls it after each observation. Its state is in the journal, so that the next
reconciler, and `status`, continue from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.node.reports import last_lines
from rankfold.reconciler.observe.fleet import rank_name
from rankfold.reconciler.wording import unresponsive

BAD_AFTER = 3  # failed starts of a proxy in a row


def still_bad(failing: Mapping[str, str], observed: Observed) -> dict[str, str]:
    """The bad devices without those that answer now."""
    devices = observed.devices
    return {n: words for n, words in failing.items() if n not in devices or not devices[n].ready}


class Processes:
    """The proxies and launchers of a fleet.

    proxies: device → pid of the living proxy, 0 while it is not known.
    silent: unresponsive processes and since when, as `observe` takes it.
    failing: as in `Observed`.
    """

    def __init__(self, layout: Layout, journal: Journal):
        self.layout, self.journal = layout, journal
        self.proxies: dict[str, int] = journal.get("proxies") or {}
        self.silent: dict[str, float] = journal.get("silent") or {}
        self.failing: dict[str, str] = journal.get("failing") or {}
        # The newest starts of each proxy since it last answered: the error of each, or "".
        self._starts: dict[str, list[str]] = {}
        self._requested_to_end: set[str] = set(journal.get("told_to_end") or ())

    def started(self, device: str) -> None:
        """Record that a proxy was started."""
        self.proxies[device] = 0
        self.tried(device)
        self._set_requested_to_end(self._requested_to_end - {device})

    def tried(self, device: str, error: str = "") -> None:
        """Record an attempt to start a proxy; error: why it failed, if it did."""
        self._starts[device] = [*self._starts.get(device, ()), error][-BAD_AFTER:]

    def requested_to_end(self, device: str) -> None:
        """Record that a proxy was requested to end, so that its end is no event."""
        self._set_requested_to_end(self._requested_to_end | {device})

    def all_requested_to_end(self, left: dict[str, str]) -> None:
        """Record that the reconciler ends together with all proxies except those in `left`.

        The next reconciler may still see some proxies that are ending; it determines again which
        devices are bad.
        """
        self._set_requested_to_end(self._requested_to_end | (self.proxies.keys() - left.keys()))
        self.journal.set("proxies", {n: pid for n, pid in self.proxies.items() if n in left})
        self._set_failing({})

    def update(self, observed: Observed, desired: Collection[str]) -> None:
        """Process an observation. desired: names of the desired devices."""
        self._record_ends(observed)
        self._record_bad(observed, desired)
        self._record_silence(observed)

    def _record_ends(self, observed: Observed) -> None:
        now = {name: device.pid for name, device in observed.devices.items()}
        for name, pid in self.proxies.items():
            if name in now and (not now[name] or not pid):
                now[name] = now[name] or pid  # unresponsive, or not known before
            elif now.get(name) != pid:
                self._ended(name, pid)
        if now != self.proxies:
            self.journal.set("proxies", now)
            self.proxies = now

    def _set_requested_to_end(self, requested_to_end: set[str]) -> None:
        if requested_to_end != self._requested_to_end:
            self._requested_to_end = requested_to_end
            self.journal.set("told_to_end", sorted(requested_to_end))

    def _ended(self, device: str, pid: int) -> None:
        if device in self._requested_to_end:
            self._set_requested_to_end(self._requested_to_end - {device})
            return
        process = f" (process {pid})" if pid else ""
        words = last_lines(self.layout.proxy_file(device, ".log"), 1)
        text = f"its proxy{process} exited; last line of its log: {words}"
        self.journal.event(f"Device/{device}", "ProxyEnded", text, "Warning")

    def _record_bad(self, observed: Observed, desired: Collection[str]) -> None:
        """Update the bad devices. A device whose proxy is slow or unresponsive is not bad: it
        has not ended."""
        observed_devices = observed.devices
        self._starts = {
            name: starts
            for name, starts in self._starts.items()
            if name in desired and not (name in observed_devices and observed_devices[name].ready)
        }
        now = {n: words for n, words in still_bad(self.failing, observed).items() if n in desired}
        for name, starts in self._starts.items():
            if len(starts) >= BAD_AFTER and name not in observed_devices and name not in now:
                now[name] = starts[-1] or last_lines(self.layout.proxy_file(name, ".log"), 1)
        self._set_failing(now)

    def _set_failing(self, now: dict[str, str]) -> None:
        if now != self.failing:
            self.journal.set("failing", now)
            self.failing = now

    def _record_silence(self, observed: Observed) -> None:
        ranks = {rank_name(*key): process for key, process in observed.ranks.items()}
        since = {name: process.silent_since for name, process in observed.devices.items()}
        since |= {name: process.silent_since for name, process in ranks.items()}
        now = {name: when for name, when in since.items() if when is not None}
        for name in sorted(now.keys() ^ self.silent.keys()):
            job, _, rank = name.rpartition("/")
            if name in ranks:
                place, who = f"Job/{job}", f"the launcher of rank {rank}"
                pid = ranks[name].launcher
            else:
                place, who, pid = f"Device/{name}", "its proxy", self.proxies.get(name, 0)
            if name in now:
                text = unresponsive(who, now[name], pid)
                self.journal.event(place, "DoesNotAnswer", text, "Warning")
            elif name in since:
                self.journal.event(place, "AnswersAgain", f"{who} answers again")
        if now != self.silent:
            self.journal.set("silent", now)
            self.silent = now
