"""The parent of all processes: it starts one stage after the other.

The next stage's processes run the script up to its loop of epochs while those of the stage before
still train. These save their state and exit; the parent then passes the folder on. A stage that is
killed starts again from the newest saved state. Requests (see `requests`) end stages, too: a change
of the number of processes does when the next stage's processes wait for the state.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.util
import os
import re
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from . import gpu, private
from .cut import Cut
from .gpu import COVERED, Gpu
from .host import blocks
from .imports import FOLDER
from .process import Script, work
from .requests import Refused, Request, Requests
from .sealing import THREADS, check, content, synchronize
from .stage import STAY, Stage

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
SAVED = re.compile(r"step-(\d+)")
ATTEMPTS = 3  # from one saved state
EXITED_EARLY = 1  # exit status
CANCELLED = 128 + signal.SIGTERM  # exit status


class Plan(NamedTuple):
    """The arguments of a run. `counts`: from which step on how many processes; the first from 0.
    `suspended`: it begins without processes, and waits until it is resumed. `keeps_bits`: the bits
    do not depend on the number of processes (D1). `cores`: of each process, those on which it runs;
    empty: all. `threads`: of PyTorch's operators, on any cores; saved state has it, too. `gpus`: of
    each process; empty: none. `covered`: as in Stage."""

    world: int
    counts: tuple[tuple[int, int], ...]
    every: int | None
    folder: Path
    script: Script
    suspended: bool = False
    keeps_bits: bool = True
    cores: tuple[tuple[int, ...], ...] = ()
    threads: int = 1
    gpus: tuple[Gpu, ...] = ()
    covered: Path = COVERED

    def processes(self, step: int) -> int:
        return [count for start, count in self.counts if start <= step][-1]

    def end(self, step: int) -> int | None:
        """The next step after `step` at which the number of processes changes."""
        return next((start for start, _ in self.counts if start > step), None)


def newest(folder: Path) -> tuple[int, Path] | None:
    """The newest saved state: its step, and where it is."""
    states = [
        (int(name[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (name := SAVED.fullmatch(path.name))
    ]
    return max(states, default=None)


def _discard_unfinished(folder: Path) -> None:
    """State that processes were writing when they were killed: others write it anew."""
    for path in folder.glob("unfinished-*"):
        shutil.rmtree(path)


def _threads(folder: Path) -> int:
    """With how many threads operators began in the run that has saved its state there."""
    return int(content(folder / THREADS))


def _name(ranks: list[int]) -> str:
    """The process with these logical workers, as `ps` and the conditions of a job show it."""
    return f"ranks-{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank-{ranks[0]}"


def _pin(index: int, cores: tuple[int, ...]) -> None:
    """The process, and those that it starts, run on these cores. The number of threads of PyTorch's
    operators stays: it decides bits."""
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:  # they have been taken from the machine, for example
        names = ", ".join(map(str, cores))
        print(f"process {index} runs on all cores, not on {names}: {error}", file=sys.stderr)


class Running:
    """The processes of a stage. In a child, the constructor exits with its status."""

    def __init__(
        self,
        plan: Plan,
        count: int,
        end: int | None,
        continues: bool,
        name: str,
        requests: Requests,
    ) -> None:
        self.count = count
        self._rendezvous = plan.folder / name  # a file
        self._rendezvous.unlink(missing_ok=True)  # of a run that was killed
        self.reports, report = os.pipe()
        pipes = {each: os.pipe() for each in range(count)}
        self._go = {each: write for each, (_, write) in pipes.items()}
        self.cut = Cut(end, plan.world)
        go = {each: read for each, (read, _) in pipes.items()}
        self.stage = Stage(
            plan.world,
            count,
            plan.folder,
            end,
            self.cut,
            plan.every,
            report,
            go,
            continues,
            plan.keeps_bits,
            plan.threads,
            plan.gpus,
            plan.covered,
        )
        self.text = b""  # of a report that is not complete
        self.gone = False  # whether its processes know where the saved state is
        self.waiting = 0  # processes that wait for the saved state
        self.saved: dict[int, list[str]] = {}  # by step: of each process, why it has not saved it
        self.ended: set[int] = set()  # processes that have reported the end of their scripts
        self.failures: dict[int, str] = {}  # by process, in order: which rank failed, and why
        self.early: set[int] = set()  # those that have exited without that report
        self.living: dict[int, int] = {}  # by pidfd, the index
        self._pids: dict[int, int] = {}
        parent = os.getpid()
        for index in range(count):
            pid = os.fork()
            if pid == 0:
                requests.forget()
                raise SystemExit(self._begin(plan, index, parent))
            self.living[descriptor := os.pidfd_open(pid)] = index
            self._pids[descriptor] = pid
        for descriptor in (report, *go.values()):
            os.close(descriptor)

    def _begin(self, plan: Plan, index: int, parent: int) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        libc.prctl(PR_SET_NAME, _name(blocks(plan.world, self.count)[index]).encode())
        for descriptor in self._go.values():
            os.close(descriptor)
        if os.getppid() != parent:
            return 1
        gpu.see(plan.gpus[index % len(plan.gpus)] if plan.gpus else None)
        if plan.cores:
            private.allow_data_workers()  # with more cores the script would not warn, either
            _pin(index, plan.cores[index % len(plan.cores)])
        return work(self.stage, plan.script, index, self._rendezvous)

    def descriptors(self) -> list[int]:
        return [self.reports, *self.living]

    def go(self, step: int, folder: Path) -> None:
        """Tells processes that wait for the saved state where it is, once."""
        if self.gone:
            return
        self.gone = True
        self.cut.continue_from(step)
        self._tell(os.fsencode(folder))

    def stay(self) -> None:
        """Tells processes that have saved at the stage's end to continue."""
        self.cut.no_end()
        self._tell(STAY)

    def leave(self) -> None:
        """Tells processes that have saved at the stage's end to exit."""
        self._tell(b"exit")

    def _tell(self, word: bytes) -> None:
        for descriptor in self._go.values():
            with contextlib.suppress(BrokenPipeError):  # the process has failed: see Parent
                os.write(descriptor, word)

    def read(self) -> list[str]:
        """Complete reports of its processes."""
        *lines, self.text = (self.text + os.read(self.reports, 4096)).split(b"\n")
        for line in lines:
            if line.startswith(b"failed "):
                _, index, reason = line.decode().split(" ", 2)
                self.failures.setdefault(int(index), reason)
        return [line.decode() for line in lines]

    def reason(self, index: int, status: int) -> str:
        """Why process `index` has failed with this exit status (see `exited`), and which rank."""
        rank = self.cut.running(index)
        ran = "" if rank is None else f" while rank {rank} ran"
        if status < 0:
            return f"was killed by signal {-status}{ran}"
        if index in self.early:
            return f"exited with 0 (os._exit?) before all its ranks had ended{ran}"
        if index not in self.failures:
            return f"exited with {status}{ran and f' (os._exit?){ran}'}"
        first = next(iter(self.failures.values()))  # others lose their connections
        return f"exited with {status}: {first}{self._gone()}"

    def _gone(self) -> str:
        """Which ranks had ended without a failure: others may have waited for them."""
        done = sorted(self.ended - self.failures.keys())
        ranks = [rank for each in done for rank in blocks(self.stage.world, self.count)[each]]
        if not ranks:
            return ""
        return f" (rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} had ended)"

    def first(self, failed: list[tuple[int, int]]) -> tuple[int, int]:
        """Statuses and indices of processes that have ended: returns the pair that counts. It is of
        a process that was killed, of one that has reported nothing, or of the first that has."""
        reported = list(self.failures)

        def order(each: tuple[int, int]) -> tuple[bool, int, int]:
            status, index = each
            place = reported.index(index) if index in reported else -1
            return status >= 0, place, index

        return min(failed, key=order)

    def exited(self, descriptor: int) -> int:
        """The exit status of the process that has ended; negative: the signal that killed it.
        EXITED_EARLY instead of 0: others of its ranks had not ended."""
        index = self.living.pop(descriptor)
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pids.pop(descriptor), 0)[1])
        shared = len(blocks(self.stage.world, self.count)[index]) > 1
        if status == 0 and shared and index not in self.ended:
            self.early.add(index)
            return EXITED_EARLY
        return status

    def kill(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for descriptor in list(self.living):
            self.exited(descriptor)

    def close(self) -> None:
        """Called when all its processes have ended."""
        for descriptor in (self.reports, *self._go.values()):
            os.close(descriptor)
        self._rendezvous.unlink(missing_ok=True)
        self.cut.close()


def _readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


class Cancelled(Exception):
    """Someone asked for the end of the run, by a request or this signal."""

    def __init__(self, signum: int = signal.SIGTERM) -> None:
        super().__init__(signum)
        self.status = 128 + signum


def _cancel(signum: int, _: object) -> None:
    raise Cancelled(signum)


class Parent:
    def __init__(self, plan: Plan, requests: Requests) -> None:
        self._plan = plan
        self._requests = requests
        self._started = 0
        self._failures = 0
        self._current: Running | None = None
        self._next: Running | None = None
        self._asked: Request | None = None  # what is being carried out
        self._step = 0  # at which a checkpoint was asked for
        self._held = False  # whether the processes have saved, and wait for a word
        self._ends: list[Request] = []  # who waits for the end of the run

    def _start(self, count: int, end: int | None, continues: bool) -> Running:
        self._started += 1
        name = f"rendezvous-{self._started}"
        return Running(self._plan, count, end, continues, name, self._requests)

    def _prepare(self, step: int) -> Running:
        """The stage from this step on, according to the plan."""
        if self._next is None:
            plan = self._plan
            self._next = self._start(plan.processes(step), plan.end(step), continues=True)
        return self._next

    def run(self) -> int:
        """Returns the exit status of the run; in a child, raises SystemExit with that of the
        process."""
        parent = os.getpid()
        status = CANCELLED
        signal.signal(signal.SIGTERM, _cancel)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _cancel)
        # All processes of the run inherit the folder for the sockets of data processes, which it
        # removes when it ends: processes that are killed would leave their own.
        multiprocessing.util.get_temp_dir()
        modules = self._plan.folder / FOLDER
        shutil.rmtree(modules, ignore_errors=True)  # of an earlier run
        modules.mkdir()
        try:
            status = self._run()
        except Cancelled as cancelled:
            status = cancelled.status
        finally:
            if os.getpid() == parent:
                self._end(status)
        if status == 0:
            shutil.rmtree(self._plan.folder)
        return status

    def _end(self, status: int) -> None:
        for each in self._ends:
            each.reply(status=status)
        for stage in (self._current, self._next):
            if stage is not None:
                stage.kill()
                stage.close()
        self._refuse("the run has ended")
        self._requests.close()

    def _run(self) -> int:
        saved = newest(self._plan.folder)
        _discard_unfinished(self._plan.folder)
        if saved:
            check(saved[1], self._plan.world)
            self._plan = self._plan._replace(threads=_threads(saved[1]))
        step = saved[0] if saved else 0
        if self._plan.suspended:
            self._rest()
        plan = self._plan
        self._current = self._start(plan.processes(step), plan.end(step), saved is not None)
        if saved:
            self._current.go(*saved)
        if self._asks("resume"):
            self._done(processes=self._current.count, step=step)
        while True:
            current = self._current
            status = self._follow(current)
            latest = newest(self._plan.folder)
            stopped = latest is not None and current.cut.ends(latest[0])
            self._current = None
            self._held = False
            current.close()
            if status == 0 and not stopped:
                return 0
            if status > 0 or (status < 0 and not self._again(latest)):
                return status if status > 0 else 128 - status
            assert latest is not None
            if status < 0:
                self._after_kill(latest[1])
            elif self._asks("suspend"):
                self._discard_next()
                self._done(step=latest[0])
                self._rest()
                check(latest[1], plan.world)
            self._current = self._prepare(latest[0])
            self._next = None
            self._current.go(*latest)
            if self._asks("scale", "resume"):
                self._done(processes=self._current.count, step=latest[0])

    def _again(self, latest: tuple[int, Path] | None) -> bool:
        """Whether to continue from saved state after processes were killed."""
        self._failures += 1
        if latest is None or self._failures >= ATTEMPTS:
            return False
        print(f"continuing from step {latest[0]}", file=sys.stderr)
        return True

    def _after_kill(self, folder: Path) -> None:
        check(folder, self._plan.world)
        _discard_unfinished(self._plan.folder)
        self._discard_next()
        if not self._asks("scale"):  # its number of processes is in the plan
            self._refuse("processes were killed; the run continues from its saved state")

    def _discard_next(self) -> None:
        if self._next is not None:
            self._next.kill()
            self._next.close()
            self._next = None

    def _follow(self, current: Running) -> int:
        """Waits for the processes of a stage. Returns 0, or the status of the first that failed;
        then the others have been killed."""
        reports = True
        while current.living:
            prepared = self._next if self._asks("scale") else None
            if prepared is not None and prepared.gone:  # what it does counts after this stage
                prepared = None
            watched = [current.reports] if reports else []
            watched += prepared.descriptors() if prepared is not None else []
            ready = self._wait(*watched, *current.living)
            if current.reports in ready:
                lines = current.read()
                for line in lines:
                    self._reported(current, line)
                reports = bool(lines or current.text)  # else all writers have exited
            if current.reports in ready or (reports and _readable(current.reports)):
                continue  # what a process has reported counts before its exit
            if prepared is not None and prepared is self._next:
                self._look_at(prepared, current, ready)
            failed = []
            for descriptor in ready & current.living.keys():
                index = current.living[descriptor]
                failed += [(status, index)] if (status := current.exited(descriptor)) else []
            if failed:
                status, index = current.first(failed)
                self._failed(current, index, status)
                current.kill()
                return status
        return 0

    def _look_at(self, prepared: Running, current: Running, ready: set[int]) -> None:
        """The stage that was asked for: when all its processes wait, the current one ends."""
        if prepared.reports in ready:
            prepared.waiting += prepared.read().count("waiting")
            if prepared.waiting == prepared.count:
                current.cut.end_now()
        for descriptor in ready & prepared.living.keys():
            index = prepared.living[descriptor]
            self._failed(prepared, index, prepared.exited(descriptor))
            self._discard_next()
            self._refuse("the new processes failed; the run continues in the former ones")
            return

    def _wait(self, *descriptors: int) -> set[int]:
        """Which of these can be read. Begins what is requested meanwhile."""
        poll = select.poll()
        for descriptor in (*descriptors, *self._requests.descriptors()):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        for request in self._requests.received():
            try:
                self._begin(request)
            except Refused as refused:
                request.reply(error=str(refused))
        return ready & set(descriptors)

    def _failed(self, stage: Running, index: int, status: int) -> None:
        ranks = ", ".join(map(str, blocks(self._plan.world, stage.count)[index]))
        reason, logs = stage.reason(index, status), self._plan.script.logs
        print(f"process {index} (ranks {ranks}) {reason}; see {logs}", file=sys.stderr)

    def _reported(self, current: Running, line: str) -> None:
        subject, *values = line.split()
        if subject == "prepare" and current.stage.end is not None and self._asked is None:
            self._prepare(current.stage.end)
        if subject == "ended":
            current.ended.add(int(values[0]))
        if subject in ("saved", "unsaved"):
            step = int(values[0])
            failures = current.saved.setdefault(step, [])
            failures.append(" ".join(values[1:]))
            if len(failures) == current.count:
                self._commit(current, step, next(filter(None, failures), ""))

    def _commit(self, current: Running, step: int, failure: str) -> None:
        """All processes have saved their state. It replaces older ones."""
        folder = self._plan.folder
        try:
            if failure:
                raise OSError(failure)
            if self._plan.every is not None or self._asks("checkpoint", "suspend"):
                synchronize(folder / f"unfinished-{step}")
            (folder / f"unfinished-{step}").rename(folder / f"step-{step}")
        except OSError as error:
            self._continue_unsaved(current, step, str(error))
            return
        self._failures = 0
        if current.cut.ends(step) and self._next is not None and self._asks("scale"):
            self._next.go(step, folder / f"step-{step}")  # while the former processes exit
        for path in folder.iterdir():
            if (name := SAVED.fullmatch(path.name)) and int(name[1]) != step:
                shutil.rmtree(path)
        if self._asks("checkpoint") and step >= self._step:
            self._done(step=step)
        if not current.cut.ends(step):
            return
        if self._asks("hold"):
            self._held = True
            self._done(step=step)
        else:
            current.leave()

    def _continue_unsaved(self, current: Running, step: int, reason: str) -> None:
        """The processes continue; so does the run after a kill, from an older state."""
        shutil.rmtree(self._plan.folder / f"unfinished-{step}", ignore_errors=True)
        text = f"the state before step {step} cannot be saved: {reason}"
        print(f"{text}; the run continues without it", file=sys.stderr)
        if self._asks("scale"):
            self._count(current.count)
        if self._asks("scale", "suspend", "hold", "checkpoint"):
            self._refuse(text)
        if current.cut.ends(step):
            self._discard_next()
            current.stay()

    # ---- requests ----

    def _asks(self, *names: str) -> bool:
        return self._asked is not None and self._asked.name in names

    def _begin(self, request: Request) -> None:
        """Raises Refused."""
        if request.name == "status":
            request.reply(**self._status())
            return
        if request.name == "cancel":
            request.reply()
            raise Cancelled
        if request.name == "ended":
            self._ends.append(request)
            return
        if self._asked is not None:
            raise Refused(f"another request is being carried out: {self._asked.name}")
        self._check(request)
        getattr(self, f"_{request.name}")(request)

    def _check(self, request: Request) -> None:
        count, world = request.processes, self._plan.world
        if count is not None and not 1 <= count <= world:
            raise Refused(f"processes must be between 1 and {world}, not {count}")
        suspended = self._current is None
        if request.name == "resume" and not suspended:
            raise Refused("the run is not suspended")
        if request.name in ("suspend", "checkpoint", "hold", "release") and suspended:
            raise Refused("the run is suspended")
        if self._held and request.name not in ("hold", "release", "suspend"):
            raise Refused("the run is held")
        stage = self._current.stage if self._current is not None else None
        if count is not None and stage is not None and stage.end is not None:
            raise Refused(f"the number of processes follows --schedule until step {stage.end}")

    def _status(self) -> dict[str, Any]:
        saved = newest(self._plan.folder)
        fields: dict[str, Any] = {"world": self._plan.world, "saved": saved[0] if saved else None}
        if self._current is None:
            return {"phase": "suspended", "processes": 0, "step": fields["saved"], **fields}
        step = max(self._current.cut.begun, 0)
        phase = "held" if self._held else "running"
        fields |= {"phase": phase, "processes": self._current.count, "step": step}
        if phase == "running":
            fields["awaited"] = self._current.cut.awaited()
            fields["quiet_s"] = round(self._current.cut.quiet_s(), 3)
        return fields

    def _count(self, count: int | None) -> None:
        """From now on as many processes."""
        if count is not None:
            self._plan = self._plan._replace(counts=((0, count),))

    def _scale(self, request: Request) -> None:
        self._count(request.processes)
        if self._current is None or self._current.count == request.processes:
            request.reply(processes=request.processes)
            return
        self._asked = request
        self._prepare(0)

    def _suspend(self, request: Request) -> None:
        assert self._current is not None
        self._asked = request
        if self._held:
            self._current.leave()
        else:
            self._current.cut.end_now()

    def _hold(self, request: Request) -> None:
        """The processes save before the next step, and wait there."""
        assert self._current is not None
        if self._held:
            request.reply()
            return
        self._asked = request
        self._current.cut.end_now()

    def _release(self, request: Request) -> None:
        """Processes that were held continue where they are."""
        assert self._current is not None
        if self._held:
            self._held = False
            self._current.stay()
        request.reply()

    def _checkpoint(self, request: Request) -> None:
        assert self._current is not None
        self._asked = request
        self._step = self._current.cut.save_now()

    def _resume(self, request: Request) -> None:
        self._count(request.processes)
        self._plan = self._plan._replace(cores=request.cores)
        if request.gpus:
            self._plan = self._plan._replace(gpus=tuple(Gpu(*each) for each in request.gpus))
        self._asked = request

    def _rest(self) -> None:
        """The run has no processes until someone resumes it."""
        while self._asked is None:
            self._wait()

    def _done(self, **fields: Any) -> None:
        assert self._asked is not None
        self._asked.reply(**fields)
        self._asked = None

    def _refuse(self, reason: str) -> None:
        if self._asked is not None:
            self._done(error=reason)
