"""The job epochs of one device, from their placement until they are detached.

The devices of an epoch connect: the lowest one creates the job's segment, and the others request it
over its socket. Then each device claims its ranks from their launchers, and the C half serves their
calls. An epoch ends here when it is saved, discarded or has failed.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from rankfold import messages
from rankfold.control import Channel, ControlError, Frame, Message
from rankfold.log import area
from rankfold.proxy.images import Images
from rankfold.proxy.jobs import Job, Placement
from rankfold.proxy.native import (
    EXIT_CLEAN,
    EXIT_CRASHED,
    EXIT_REPLACED,
    Event,
    Native,
    NativeError,
    Outbox,
    segment_create,
)
from rankfold.service import Outgoing, Request, Server

log = area(__file__)

MOVING = ("running", "stopping", "cut")  # a job whose devices have connected, until it ends
SEGMENT_WITHIN_S = 20.0  # for the lowest device to have the placement, too
HISTORY = 256  # ranks of ended placements that `status` still reports
SAVED_JOBS = 16  # jobs that `status` still reports after they were released


class Epochs:
    """The epochs that were placed on `device`, the newest of each job."""

    def __init__(self, device: str, native: Native, server: Server, images: Images):
        self.device, self.native, self.server, self.images = device, native, server, images
        self.jobs: dict[str, Job] = {}
        self.history: list[Message] = []
        self._next_id = 0
        server.on_close = self._on_peer_disconnected

    # ---- operations; they raise ControlError ----

    def _find(self, message: messages.OfJob) -> Job:
        job = self.jobs.get(message.job)
        if job is None or job.placement.epoch != message.epoch:
            raise ControlError(
                "unknown_job", f"there is no job {message.job} epoch {message.epoch}"
            )
        return job

    def place(self, placement: Placement) -> None:
        """Begin an epoch; nothing happens if it has begun."""
        old = self.jobs.get(placement.job)
        if old and old.placement.incarnation > placement.incarnation:
            problem = f"{placement.job} was here in incarnation {old.placement.incarnation}"
            raise ControlError("incarnation", f"{problem}: {placement.incarnation} has ended")
        if old and old.placement.epoch == placement.epoch:
            return
        if old and old.placement.epoch > placement.epoch:
            raise ControlError("epoch", f"epoch {old.placement.epoch} is placed here already")
        if old and old.state != "saved":
            raise ControlError("busy", f"epoch {old.placement.epoch} has not been detached")
        self._next_id += 1
        job = Job(self._next_id, placement, placement.devices.index(self.device))
        self.jobs[placement.job] = job
        try:
            self._connect(job)
        except NativeError as error:
            del self.jobs[placement.job]
            raise ControlError("failed", str(error)) from error

    def barrier(self, request: Request[messages.Barrier]) -> Message:
        job, action = self._find(request.message), request.message.action
        if job.opened and job.state in MOVING:
            self.native.barrier(job.id, action == "request")
            self._refresh(job)
        elif action == "request" and job.state == "joining":
            raise ControlError("joining", "the devices of the job have not connected yet")
        return {"state": job.state}

    def wait(self, request: Request[messages.Wait]) -> None:
        """Reply when the job has one of the states that the request names, or its time is over."""
        job = self._find(request.message)
        self._refresh(job)
        states: set[str] = {*request.message.states, "failed"}
        within_s = request.message.within_s
        job.waits.append((time.monotonic() + within_s, states, request))
        self.server.after(within_s, lambda: self._answer_waits(job))
        self._answer_waits(job)

    def save(self, request: Request[messages.Save]) -> None:
        """Begin to save a job that continues afterwards; `on_saved` replies."""
        job = self._find(request.message)
        self._store_modules(job)
        if job.detaches or not job.opened or not self.native.job_save(job.id):
            raise ControlError("no_cut", f"job {job.placement.job} is not at a cut")
        job.saves.append(request)

    def detach(self, request: Request[messages.Detach]) -> Message | None:
        """End an epoch. None: `on_saved` replies when it is saved or discarded."""
        message = request.message
        job = self.jobs.get(message.job)
        if job is None or job.placement.epoch != message.epoch or job.state == "saved":
            return {"saved_bytes": job.saved_bytes if job else 0}
        self._remember(job)
        if not job.opened:
            self._close(job)
            return {"saved_bytes": 0}
        if message.discard:
            self.native.job_discard(job.id)
            _refuse(job.saves, "the job is discarded")
        else:
            self._store_modules(job)
            if not self.native.job_leave(job.id):
                raise ControlError("no_cut", f"job {job.placement.job} is not at a cut")
        job.detaches.append(request)
        return None

    def _store_modules(self, job: Job) -> None:
        """Store the job's modules: on its next devices they are found on disk, so it stays until
        all are stored. Raises ControlError."""
        if why := self.images.store(job.id):
            raise ControlError(
                "storage", f"{why}; job {job.placement.job} stays at its cut until there is space"
            )

    def peer(self, request: Request[messages.Peer]) -> None:
        """Send the job's shared segment, from its lowest device to another one."""
        message = request.message
        job = self.jobs.get(message.job)
        if job is None or job.placement.epoch != message.epoch:
            raise ControlError("unknown_job", "not placed here yet")
        device = message.device
        if job.device != 0 or device not in job.placement.devices or job.segment < 0:
            raise ControlError("argument", f"{device} is not a peer of this job here")
        index = job.placement.devices.index(device)
        request.reply([job.segment])
        job.peers[request.channel] = index
        job.joined.add(index)
        self._on_all_joined(job)

    def outbox(self, request: Request[messages.Outbox]) -> None:
        """Send the descriptor of memory from which another device reads results directly."""
        job, device = self._find(request.message), request.message.device
        if not job.opened:
            raise ControlError("unknown_job", "not opened here yet")
        if device not in job.placement.devices:
            raise ControlError("argument", f"{device} is not a peer of this job here")
        try:
            outbox = self.native.job_outbox(job.id)
        except NativeError as error:
            raise ControlError("unavailable", str(error)) from error
        request.reply([outbox.fd], bytes=outbox.size, gpu=outbox.gpu.hex())

    def describe(self, job: Job) -> Message:
        """The epoch as `status` reports it."""
        self._remember(job)
        self._refresh(job)
        now = self.native.job_status(job.id) or {}
        return {
            "job": job.placement.job,
            "epoch": job.placement.epoch,
            "state": job.state,
            "reason": job.reason,
            "cut_age_s": age(job.cut_at),
            "released_age_s": age(job.released_at),
            "ranks": [job.describe_rank(rank) for rank in job.local],
            "races": job.races,
            "alarms": job.alarms,
            "shared": now.get("shared", 0),
            "spent": now.get("spent"),
            "guard": now.get("guard"),
            "incarnation": job.placement.incarnation,
            "readers": [job.placement.devices[n] for n in now.get("readers", ())],
            "indirect": job.indirect,
            "direct": now.get("direct", 0),
            "through_host": now.get("through_host", 0),
            "links": now.get("links", 0),
            "links_refused": now.get("links_refused", 0),
            "links_bytes": now.get("links_bytes", 0),
            "links_why_not": now.get("links_why_not", ""),
        }

    # ---- connecting devices and ranks ----

    def _connect(self, job: Job) -> None:
        count = len(job.placement.devices)
        if count > 1 and job.device > 0:
            self._request_segment(job, time.monotonic() + SEGMENT_WITHIN_S)
            return
        if count > 1:
            job.segment = segment_create(count)
        self._open(job)
        job.joined.add(0)
        self._on_all_joined(job)

    def _request_segment(self, job: Job, deadline: float) -> None:
        """Request the segment from the lowest device; retry, as it may not have the placement
        yet."""

        def on_reply_frame(_reply: messages.Done, fds: list[int]) -> None:
            job.segment = fds[0]
            try:
                self._open(job)
            except NativeError as error:
                self._fail(job, str(error))
                return
            job.state = "running"
            self._claim(job)

        def on_call_ended(reason: str) -> None:
            if job.segment >= 0:
                self._fail(job, f"device {job.placement.devices[0]} was lost: {reason}")
            elif time.monotonic() < deadline and self.jobs.get(job.placement.job) is job:
                self.server.after(0.02, lambda: self._request_segment(job, deadline))
            else:
                self._fail(job, f"device {job.placement.devices[0]} cannot be reached: {reason}")

        p = job.placement
        request = {"op": "peer", "job": p.job, "epoch": p.epoch, "device": self.device}
        job.calls.append(
            Outgoing(
                self.server,
                p.sockets[0],
                request,
                reply=messages.Done,
                descriptors=1,
                on_reply=on_reply_frame,
                on_end=on_call_ended,
            )
        )

    def _open(self, job: Job) -> None:
        p = job.placement
        self.native.job_open(
            job.id, p.epoch, job.device, len(p.devices), list(p.rank_device), job.segment
        )
        self.native.job_names(job.id, p.devices)
        if p.determinism == "D0":
            self.native.allow_links(job.id)
        if p.check_order != "none":
            self.native.check_order(job.id, p.check_order)
        job.opened = True
        if self.native.hal == "nvidia":
            for index in range(len(p.devices)):
                if index != job.device:
                    job.indirect[p.devices[index]] = "it has not answered yet"
                    self._open_outbox(job, index, time.monotonic() + SEGMENT_WITHIN_S)

    def _open_outbox(self, job: Job, index: int, deadline: float) -> None:
        """Read another device's results directly, if possible; until then, and otherwise, they come
        through host memory. Retry while the device does not have the job yet."""
        p = job.placement
        device = p.devices[index]

        def on_reply_frame(reply: messages.OutboxMemory, fds: list[int]) -> None:
            call.close()
            try:
                outbox = Outbox(fds[0], reply.bytes, bytes.fromhex(reply.gpu))
                self.native.job_outbox_open(job.id, index, outbox)
                del job.indirect[device]
                log.info("job %s: the memory of %s is read directly", p.job, device)
            except NativeError as error:
                give_up(str(error))
            finally:
                os.close(fds[0])

        def on_call_ended(reason: str) -> None:
            if call.refused == "unknown_job" and time.monotonic() < deadline:
                self.server.after(0.02, again)
            else:
                give_up(reason)

        def again() -> None:
            if job.opened:
                self._open_outbox(job, index, deadline)

        def give_up(reason: str) -> None:
            job.indirect[device] = reason
            log.info("job %s: %s is read through host memory: %s", p.job, device, reason)

        call = Outgoing(
            self.server,
            p.sockets[index],
            {"op": "outbox", "job": p.job, "epoch": p.epoch, "device": self.device},
            reply=messages.OutboxMemory,
            descriptors=1,
            on_reply=on_reply_frame,
            on_end=on_call_ended,
        )
        job.calls.append(call)

    def _on_all_joined(self, job: Job) -> None:
        if job.state == "joining" and len(job.joined) == len(job.placement.devices):
            job.state = "running"
            self._claim(job)

    def _claim(self, job: Job) -> None:
        for rank in job.local:
            self._claim_rank(job, rank)
        self._answer_waits(job)

    def _claim_rank(self, job: Job, rank: int) -> None:
        def on_reply_frame(_reply: messages.Done, fds: list[int]) -> None:
            try:
                if job.detaches:
                    return  # it has nothing here yet: its launcher gives it to the next epoch
                self.native.rank_attach(job.id, rank, fds[0], fds[1])
                status = self.native.rank_status(job.id, rank)
                if status:
                    job.attached[rank] = status
                if job.released_at is None:
                    job.released_at = time.monotonic()
            except NativeError as error:
                self._fail(job, str(error))
            finally:
                for fd in fds:
                    os.close(fd)

        def on_notice_frame(frame: Frame) -> None:
            notice = frame.decode(messages.Notice)
            if isinstance(notice, messages.Exited):
                self._exited(job, rank, notice.exit_status)
            elif rank in job.attached:
                self.native.rank_exited(job.id, rank, EXIT_REPLACED)
                job.attached.pop(rank)
                self._claim_again(job, rank)

        def on_call_ended(reason: str) -> None:
            if rank not in job.exited:
                log.warning("job %s: rank %d is lost: %s", job.placement.job, rank, reason)
                self._exited(job, rank, 0 if rank not in job.attached else -signal.SIGKILL)

        request = {
            "op": "claim",
            "epoch": job.placement.epoch,
            "device": self.device,
            **messages.of_incarnation(job.placement.incarnation),
        }
        path = job.placement.launchers[rank]
        job.calls.append(
            Outgoing(
                self.server,
                path,
                request,
                reply=messages.Done,
                descriptors=2,
                on_reply=on_reply_frame,
                on_end=on_call_ended,
                on_notice=on_notice_frame,
            )
        )

    def _claim_again(self, job: Job, rank: int) -> None:
        """The rank has a new channel; claim it when the old one is closed here."""
        if job.opened and self.native.rank_status(job.id, rank):
            self.server.after(0.01, lambda: self._claim_again(job, rank))
        elif job.opened:
            self._claim_rank(job, rank)

    def _exited(self, job: Job, rank: int, status: int) -> None:
        if rank in job.exited:
            return
        self._remember(job)
        job.exited.add(rank)
        self.native.rank_exited(job.id, rank, EXIT_CRASHED if status else EXIT_CLEAN)

    def _on_peer_disconnected(self, channel: Channel) -> None:
        for job in self.jobs.values():
            index = job.peers.pop(channel, None)
            if index is None or job.state in ("saved", "failed") or job.detaches:
                continue
            if job.state == "cut":
                job.departed.add(index)  # it detaches first: nothing is in progress here
            else:
                self._fail(job, f"device {job.placement.devices[index]} was lost")

    # ---- progress and end ----

    def _refresh(self, job: Job) -> None:
        """Update the state of the barrier: events may be out of date when they are read."""
        if job.state not in MOVING:
            return
        status = self.native.job_status(job.id)
        if not status or status["state"] not in MOVING:
            return
        if status["state"] == "cut" and status["cut_at"] != job.cut_at:
            log.info("job %s: cut %s", job.placement.job, status["round"])
        job.state, job.cut_at = status["state"], status["cut_at"]

    def on_changed(self, job: Job, event: Event) -> None:
        """The C half reports another state of the job."""
        if event.state == "failed":
            self._fail(job, event.text)
            _refuse(job.detaches, event.text)
            _refuse(job.saves, event.text)
        else:
            self._refresh(job)
            if job.departed and job.state not in ("cut", "saved", "failed"):
                self._fail(job, f"device {job.placement.devices[min(job.departed)]} was lost")
        self._answer_waits(job)

    def on_saved(self, job: Job, event: Event) -> None:
        """The C half has saved the job, or could not; it has left this device unless its state is
        still "cut"."""
        job.saved_bytes = event.size
        if event.state != "cut":
            self._close(job)
        elif event.text:
            _refuse(job.saves, event.text)
        else:
            job.answer_saves()

    def _fail(self, job: Job, reason: str) -> None:
        if job.state in ("saved", "failed"):
            return
        log.error("job %s epoch %d: %s", job.placement.job, job.placement.epoch, reason)
        job.state, job.reason = "failed", reason
        if job.opened:
            self.native.job_fail(job.id, reason)
        self._answer_waits(job)

    def _close(self, job: Job) -> None:
        """The epoch has ended here: close its connections, keep its name as saved."""
        for call in job.calls:
            call.close()
        if job.opened:
            self.native.job_close(job.id)
        if job.segment >= 0:
            os.close(job.segment)
        self.images.forget_job(job.id)
        job.calls, job.peers, job.segment, job.opened = [], {}, -1, False
        job.state = "saved"
        self._answer_waits(job)
        job.answer_saves()
        for request in job.detaches:
            request.reply(saved_bytes=job.saved_bytes)
        job.detaches.clear()
        self.history.extend(
            {"job": job.placement.job, "epoch": job.placement.epoch, **job.describe_rank(rank)}
            for rank in job.local
        )
        del self.history[:-HISTORY]
        self._drop_old(job)

    def _drop_old(self, latest: Job) -> None:
        """Keep only the last few saved jobs; a request about an older one gets the reply of a
        device that has never had it."""
        self.jobs.pop(latest.placement.job, None)
        self.jobs[latest.placement.job] = latest
        saved = [name for name, job in self.jobs.items() if job.state == "saved"]
        for name in saved[:-SAVED_JOBS]:
            del self.jobs[name]

    def _answer_waits(self, job: Job) -> None:
        now = time.monotonic()
        waits, job.waits = job.waits, []
        for deadline, states, request in waits:
            if job.state in states or now >= deadline:
                request.reply(state=job.state, reason=job.reason)
            else:
                job.waits.append((deadline, states, request))

    def _remember(self, job: Job) -> None:
        for rank in job.local:
            if job.opened and (status := self.native.rank_status(job.id, rank)):
                job.remember(rank, status)


def _refuse(requests: list[Any], reason: str) -> None:
    for request in requests:
        request.refuse(ControlError("failed", reason))
    requests.clear()


def age(since: float | None) -> float | None:
    """Seconds since a reading of CLOCK_MONOTONIC. Ages are sent because the receiver's clock may
    differ."""
    return None if since is None else max(0.0, time.monotonic() - since)
