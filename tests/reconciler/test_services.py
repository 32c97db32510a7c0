"""A file of kind Service becomes one job for each replica. How many run follows the load, is in the
journal, and moves devices by the steps that move any job."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.policy.serving import Replicas
from rankfold.reconciler import clock
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.rows import in_service
from rankfold.reconciler.model.desired import RESTARTS_MAX, Desired, Job, Origin, Service
from rankfold.reconciler.model.recorded import RESTARTING, Ending, Record
from rankfold.reconciler.observe import loads
from rankfold.reconciler.observe.loads import Load
from rankfold.reconciler.plan.ending import RESTART_S, or_restart
from rankfold.reconciler.services import Services
from rankfold.reconciler.source.revision import cut_files, differences, merged
from rankfold.reconciler.source.spec import not_kept
from support.fleet import until
from support.simulated import Fleet

from .test_ranges import fleet, job, on, reasons, wish
from .test_spec import JOB, POOL, faults, load

pytestmark = pytest.mark.unit

SERVICE = """\
apiVersion: rankfold/v1alpha1
kind: Service
metadata: {name: web}
spec:
  command: [./serve]
  replicas: {min: 1, max: 3}
  load: {file: load, perReplica: 50}
"""
FIXED = SERVICE.replace("{min: 1, max: 3}", "3").replace("  load:", "  #")


# ---- files


def test_a_service_is_a_job_for_each_replica() -> None:
    jobs = load(SERVICE, POOL).check().desired.jobs
    assert list(jobs) == ["web-0", "web-1", "web-2"]
    service = Service("web", 1, 3, "/work/load", 50.0, 30)
    assert jobs["web-1"] == Job(
        "web-1",
        ("./serve",),
        "/work",
        1,
        1,
        env=(("REPLICA", "1"),),
        tier="premium",
        save_every_s=0,
        service=service,
        replica=1,
    )
    assert str(service) == "1 to 3, one for 50 of /work/load, fewer after 30 s"
    fixed = load(FIXED, POOL).check().desired.jobs["web-2"].service
    assert fixed == Service("web", 3, 3) and str(fixed) == "3"


WRONG = {
    ("{min: 1, max: 3}", "0"): "0.yaml:6: spec.replicas: must be at least 1, not 0",
    ("{min: 1, max: 3}", "257"): "0.yaml:6: spec.replicas: must be at most 256, not 257",
    ("{min: 1, max: 3}", "2"): "0.yaml:6: spec.replicas: must be a range, {min: …, max: …}",
    ("min: 1", "min: 4"): "0.yaml:6: spec.replicas.min: must be at most max (3), not 4",
    ("  load:", "  #"): "0.yaml:6: spec.replicas: must be one number, or there must be a load",
    ("perReplica: 50", "perReplica: 0"): "0.yaml:7: spec.load.perReplica: must be at least 1e-09",
    ("file: load, ", ""): "0.yaml:7: spec.load: must have a file or a url, one of the two",
    ("file: load", "file: load, url: http://a"): "0.yaml:7: spec.load: must have a file or a url",
    ("file: load", "file: load, metric: a"): "0.yaml:7: spec.load.metric: belongs to a url",
    ("file: load", "url: 'ftp://a'"): "0.yaml:7: spec.load.url: ",
    ("file: load", "url: 'http://'"): "0.yaml:7: spec.load.url: ",
    ("file: load", "url: 'http:///a'"): "0.yaml:7: spec.load.url: is no URL: it has no host",
    ("file: load", "url: 'http://a:x'"): "0.yaml:7: spec.load.url: is no URL: Port could not be",
    ("file: load", "url: 'http://a b'"): "0.yaml:7: spec.load.url: ",
    ("file: load", "url: 'http://me:pw@a'"): "0.yaml:7: spec.load.url: must have no user name or",
    ("file: load", "url: 'http://a#b'"): "0.yaml:7: spec.load.url: must have no fragment",
    ("file: load", "url: http://a, metric: 1a"): "0.yaml:7: spec.load.metric: ",
    ("[./serve]", "[a]\n  quota: x"): "0.yaml:6: spec.quota: there is no quota 'x'",
    ("[./serve]", "[torchrun, a.py]"): "0.yaml:5: spec.command: torchrun starts ranks of its own",
    ("[./serve]", "[a]\n  env: {REPLICA: '1'}"): "0.yaml:6: spec.env.REPLICA: is set by rankfold",
    ("[./serve]", "[a]\n  env: {RANK: '1'}"): "0.yaml:6: spec.env.RANK: is set by rankfold",
    ("[./serve]", "[a]\n  gpus: 2"): "0.yaml:6: spec.gpus: there is no such field",
    ("name: web", "name: " + "a" * 60): "0.yaml:3: metadata.name:",
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_service(change: tuple[str, str]) -> None:
    found = faults(SERVICE.replace(*change))
    assert len(found) == 1 and WRONG[change] in found[0], found


def test_replicas_and_jobs_share_their_names() -> None:
    other = SERVICE.replace("kind: Service", "kind: Job").replace("name: web", "name: web-1")
    other = other[: other.index("  replicas")] + "  worldSize: 1\n"
    (found,) = faults(SERVICE, other)
    assert "metadata.name: there is a Job 'web-1' already, in 0.yaml:3; rename one" in found


def test_a_service_for_devices_that_no_pool_has_is_refused() -> None:
    found = faults(SERVICE.replace("[./serve]", "[a]\n  deviceTypes: [nvidia]"), POOL)
    assert found == ["0.yaml:7: spec.replicas: requests 1 device; the pools have 0 of nvidia"]


def test_a_service_may_be_lowered_in_a_watched_directory(tmp_path: Path) -> None:
    """Its last replicas are gone from the file, which does not look cut off; nor does it if a job
    before the service is gone, too."""
    pool = POOL + "---\n"
    before = load(pool + JOB + "---\n" + FIXED)
    with Journal(tmp_path) as journal:
        for (kind, name), origin in before.origins.items():
            found = before.desired.jobs if kind == "Job" else before.desired.pools
            journal.put(found[name], "here", origin, "r1")
        objects = journal.objects()
    assert cut_files(load(pool + FIXED.replace(": 3", ": 2")), objects, ()) == []
    (fault,) = cut_files(load(POOL), objects, ())
    assert "Job/web-0, Job/web-1, Job/web-2, which came from it" in str(fault)


def test_a_plan_shows_a_change_of_the_load() -> None:
    before, after = (load(text).desired for text in (SERVICE, SERVICE.replace("50", "70")))
    found = differences(before, after, {})
    assert [(each.object, each.disturbs) for each in found] == [
        (f"Job/web-{at}", False) for at in range(3)
    ]
    assert [field for field, _, _ in found[0].fields] == ["spec.replicas"]


def test_a_plan_starts_no_replica_that_rests() -> None:
    new = load(SERVICE.replace("max: 3", "max: 4"))
    known = Desired(jobs={n: in_service(j, {}) for n, j in load(SERVICE).desired.jobs.items()})
    assert [each.idle for each in known.jobs.values()] == [False, True, True]
    planned = merged(known, new, frozenset(), {}, {})
    assert [each.idle for each in planned.jobs.values()] == [False, True, True, True]


# ---- the load


def test_loads(tmp_path: Path) -> None:
    file = tmp_path / "load"
    for text, number in (("7\n", 7.0), (" 1.5e3 ", 1500.0), ("0", 0.0), ("1e15", 1e15)):
        file.write_text(text)
        assert loads.read(str(file)) == Load(number)
    for text in ("", "-1", "nan", "inf", "1e16", "1 2", "é", "0x10", "9" * 65):
        file.write_text(text)
        found = loads.read(str(file))
        assert found.value is None and f"{file} must hold one number from 0 to 1e+15" in str(found)
    file.unlink()
    assert loads.read(str(file)).problem == f"{file} cannot be read: No such file or directory"
    os.mkfifo(file)
    assert loads.read(str(file)).problem == f"{file} is not a plain file"
    assert "is not a plain file" in loads.read(str(tmp_path)).problem


ANSWERS = {
    "/load": b"7.5\n",
    "/none": b"",
    "/many": b"9" * 100,
    "/metrics": b'# HELP a b\na_total 99\na{x="1 } 2"} 2\na{x="2"} 3.5 1700000000\na 1\n'
    b"b NaN\nc x\nd -1\n",
    "/long": b"1" * (loads.URL_BYTES_MAX + 1),
    "/latin": b"\xe9",
}


class Answering(BaseHTTPRequestHandler):
    """A server of ANSWERS; it never completes the answer to /slow, sends /moved elsewhere, and
    does not speak HTTP at /odd."""

    def do_GET(self) -> None:
        if self.path == "/odd":
            self.wfile.write(b"what?\r\n\r\n")
            return
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/load")
            self.end_headers()
            return
        known = self.path in ANSWERS or self.path == "/slow"
        self.send_response(200 if known else 404)
        self.end_headers()
        if self.path == "/slow":
            for _ in range(1000):
                self.wfile.write(b"7")
                time.sleep(0.05)
        self.wfile.write(ANSWERS.get(self.path, b"7"))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as found:
        found.daemon_threads = True
        found.block_on_close = False
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_loads_at_urls(server: str) -> None:
    assert loads.fetch(f"{server}/load") == Load(7.5)
    assert loads.fetch(f"{server}/metrics#a") == Load(6.5), "of all labels, and no other metric"
    assert loads.fetch(f"{server}/metrics#a_total") == Load(99.0)
    refused = {
        "/none": " must hold one number",
        "/many": " must hold one number from 0 to 1e+15, and has more than 64 bytes",
        "/metrics": " must hold one number",
        "/metrics#none": " has no metric none",
        "/metrics#b": " must have a metric b from 0 to 1e+15, not nan",
        "/metrics#c": " must hold numbers, not 'x'",
        "/metrics#d": " must have a metric d from 0 to 1e+15, not -1",
        "/long": ": the answer has more than 1048576 bytes",
        "/latin": " must hold one number",
        "/gone": ": the answer has status 404, not 200",
        "/moved": ": the answer has status 302, not 200",
        "/odd": " cannot be read: ",
    }
    for path, problem in refused.items():
        found = loads.fetch(f"{server}{path}")
        assert found.value is None and found.problem.startswith(f"{server}{path}{problem}"), found
    slow = loads.fetch(f"{server}/slow", 0.3)
    assert slow.problem == f"{server}/slow has not answered within 0.3 s"


def test_a_server_that_is_gone_or_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/load"
        assert loads.fetch(url, 0.2).problem == f"{url} has not answered within 0.2 s"
    assert loads.fetch(url).problem == f"{url} cannot be read: Connection refused"


def test_a_url_is_requested_again_and_again(server: str, tmp_path: Path) -> None:
    """A server that hangs delays neither another one nor a file."""
    file = tmp_path / "load"
    file.write_text("3")
    sources = [str(file), f"{server}/load", f"{server}/slow"]
    found = loads.Loads()
    ANSWERS["/load"] = b"7.5"
    until(lambda: found.of(sources)[sources[1]] == Load(7.5), what="the first answer")
    ANSWERS["/load"] = b"8"
    until(lambda: found.of(sources)[sources[1]] == Load(8.0), what="the next answer")
    until(lambda: found.of(sources)[sources[0]] == Load(3.0), what="the file")
    assert found.of(sources)[sources[2]] == Load()
    assert found.of([]) == {}
    found.close()


def test_a_service_of_a_quota_and_a_url() -> None:
    text = SERVICE.replace("file: load", "url: http://h:90/m?a=b, metric: rps")
    text = text.replace("  load", "  quota: web\n  load")
    policy = (
        "apiVersion: rankfold/v1alpha1\nkind: Policy\nmetadata: {name: p}\n"
        "spec:\n  quotas: {web: {devices: 1, borrow: %d}}\n"
    )
    found = load(text, POOL, policy % 0).check().desired.jobs["web-2"]
    assert found.quota == "web" and found.service is not None
    assert found.service.load == "http://h:90/m?a=b#rps"
    assert not_kept(found) == ""
    (fault,) = faults(text.replace("min: 1", "min: 3"), POOL, policy % 1)
    assert "spec.replicas: requests 3 devices; its quota web has 1 and borrows 1 at most" in fault


class Given:
    """Loads that a test gives."""

    def __init__(self) -> None:
        self.load = Load()

    def of(self, files: Any) -> dict[str, Load]:
        return dict.fromkeys(files, self.load)


Followed = tuple[Journal, Callable[..., dict[str, bool]]]


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    """A journal with a service, and what makes it follow a load: which of its replicas are idle
    then."""
    journal = Journal(tmp_path)
    for each in load(SERVICE).desired.jobs.values():
        journal.put(each, "here", Origin("web.yaml", 3), "r1")

    def follow(load: Load, seconds: float = 0.0) -> dict[str, bool]:
        found = Given()
        found.load = load
        services = Services(journal)  # another one each time: what decides is in the journal
        monkeypatch.setattr(services, "_loads", found)
        now = clock.now()
        monkeypatch.setattr(clock, "now", lambda: now + seconds)
        services.update()
        return {name: job.idle for name, job in journal.desired().jobs.items()}

    return journal, follow


def idle(*flags: bool) -> dict[str, bool]:
    return {f"web-{number}": flag for number, flag in enumerate(flags)}


def test_the_number_of_replicas_follows_the_load(followed: Followed) -> None:
    journal, follow = followed
    first = idle(False, True, True)
    assert follow(Load()) == first and journal.get("replicas") is None
    assert follow(Load(101)) == idle(False, False, False)
    version = journal.version
    assert follow(Load(120)) == idle(False, False, False) and journal.version == version
    assert follow(Load(60)) == follow(Load(10), 29) == idle(False, False, False)
    assert follow(Load(10), 1) == idle(False, False, True), "as many as were needed meanwhile"
    assert journal.version != version
    assert follow(Load(10), 30) == first
    texts = [each.message for each in journal.events("Service/web")]
    assert texts == [
        "1 → 3 replicas: the load is 101",
        "3 → 2 replicas: the load is 10",
        "2 → 1 replica: the load is 10",
    ]


def test_a_changed_load_is_noticed_before_the_next_turn(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Given()
    services = Services(followed[0])
    monkeypatch.setattr(services, "_loads", found)
    assert not services.changed() and services.follow_s() == 1.0, "no update has asked yet"
    services.update()
    assert not services.changed() and services.follow_s() == 0.1
    found.load = Load(101)
    assert services.changed()
    services.update()
    assert not services.changed()


def test_a_load_that_cannot_be_read_changes_nothing(followed: Followed) -> None:
    journal, follow = followed
    follow(Load(60))
    assert follow(Load(problem="gone"), 100) == idle(False, False, True)
    assert journal.get("load_problems") == {"web": "gone"}
    assert journal.events("Service/web")[-1].reason == "LoadUnknown"
    assert follow(Load(60)) == idle(False, False, True)
    assert journal.get("load_problems") == {}


def test_limits_that_a_file_changes_hold_at_once(followed: Followed) -> None:
    journal, follow = followed
    follow(Load(150))
    lower = load(SERVICE.replace("max: 3", "max: 2")).desired.jobs
    journal.put(lower["web-1"], "here", Origin("web.yaml", 3), "r2")
    assert journal.desired().jobs["web-1"].idle is False
    none = load(SERVICE.replace("min: 1", "min: 0")).desired.jobs["web-0"]
    assert in_service(none, {}).idle and not in_service(none, {"web": Replicas(1)}).idle


# ---- devices


def service(least: int, most: int) -> list[Job]:
    text = SERVICE.replace("min: 1, max: 3", f"min: {least}, max: {most}")
    return list(load(text).check().desired.jobs.values())


def needs(place: Fleet, number: int, *others: Job) -> None:
    """The service needs this many replicas from now on."""
    replicas = {"web": Replicas(number)}
    jobs = [each for each in place.desired.jobs.values() if each.service]
    wish(place, *others, *(in_service(each, replicas) for each in jobs))


def test_training_gives_up_devices_and_has_them_back() -> None:
    train = job("train", 2, 2, 1)
    place = fleet(3, train, *service(0, 2))
    needs(place, 1, train)
    place.converge()
    assert on(place) == {"train": 2, "web-0": 1}
    needs(place, 2, train)
    assert reasons(place, "train")["Converging"] == (
        "serving: gives up 1 device for web-1 (premium); step: placed"
    )
    place.converge()
    assert on(place) == {"train": 1, "web-0": 1, "web-1": 1}
    needs(place, 0, train)
    assert reasons(place, "web-1")["Desired"] == "the load needs fewer replicas"
    assert place.converge().converged == {"train", "web-0", "web-1"}
    assert on(place) == {"train": 2, "web-0": 0, "web-1": 0}
    usage = place.records["train"].placed_for, place.records["web-0"].placed_for
    assert usage == ("standard/growth", "premium/serving")
    assert place.records["train"].restarts == 0, "it continued from memory"


@pytest.mark.parametrize("reason", ["RankFailed", "Completed", "DeviceLost"])
def test_a_replica_restarts_however_it_ended(reason: str) -> None:
    (replica,) = (in_service(each, {}) for each in service(1, 1))
    phase = "Succeeded" if reason == "Completed" else "Failed"
    ended = Ending(phase, reason, "it exited", 0.0)
    record = Record("web-0", restarts=RESTARTS_MAX + 5)
    assert or_restart(replica, record, ended).phase == RESTARTING
    assert or_restart(replace(replica, cancelled=True), record, ended).phase == phase
    other = Ending("Failed", "TakenOver", "elsewhere", 0.0)
    assert or_restart(replica, record, other) == other


def end_rank(place: Fleet, name: str, status: int) -> None:
    rank = place.ranks[name, 0]
    place.ranks[name, 0] = replace(rank, state="exited", exit_status=status)


def test_a_replica_that_keeps_exiting_waits_before_it_starts_again() -> None:
    place = fleet(1, *service(1, 1))
    place.converge()
    for ran, waits in ((100.0, False), (1.0, True)):
        place.now += ran
        placed = place.placed
        end_rank(place, "web-0", 0)
        if waits:
            since = place.now
            while place.placed == placed:
                place.turn()
            assert place.now - since >= RESTART_S
        place.converge()
        assert on(place) == {"web-0": 1} and place.placed == placed + 1


@settings(max_examples=25)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.booleans()), max_size=4),
)
def test_any_load_converges(
    devices: int, trains: list[tuple[int, bool]], rounds: list[tuple[int, int, bool]]
) -> None:
    """Loads may change, and replicas exit, in the middle of a move; `Fleet` checks the invariants
    at every action."""
    train = [
        job(f"t{at}", ranks, ranks, 1 if elastic and ranks > 1 else None, created=float(at))
        for at, (ranks, elastic) in enumerate(trains)
    ]
    place = fleet(devices, *train, *service(0, 3))
    number = 0
    needs(place, number, *train)
    for number, turns, ends in rounds:
        needs(place, number, *train)
        for _ in range(turns):
            place.turn()
        if ends and ("web-0", 0) in place.ranks:
            end_rank(place, "web-0", 1)
    place.converge(200)
    place.now += RESTART_S
    place.converge(200)
    held = on(place)
    assert sum(held.get(f"web-{at}", 0) for at in range(3)) == min(number, devices)
