"""Desired state from YAML files: load, check, normalise.

`load_dir`, and `load_found` for a git commit, return objects and faults. A set of files with a
fault is refused as a whole, so that part of a commit never runs. Each fault has file, line, field,
and what would be correct. The schemas are in ``schemas/``; this module checks what a schema cannot
express across fields and files; field_rules.py has what concerns one field.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from rankfold import legible
from rankfold.plural import count
from rankfold.reconciler.model import runtimes
from rankfold.reconciler.model.desired import (
    GROWTH_DELAY_S,
    Defragmentation,
    Desired,
    Device,
    Job,
    Origin,
    Pool,
    QuotaRule,
    Service,
    TierRule,
    seconds_of,
)
from rankfold.reconciler.model.fields import fields_of
from rankfold.reconciler.model.fitting import Groups
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.model.values import CAPABILITIES, most_devices, too_many_devices
from rankfold.reconciler.source import trees, yamldoc
from rankfold.reconciler.source.field_rules import (
    DEVICE_MEMORY_MIN,
    DEVICE_MEMORY_WORDS,
    command_faults,
    device_memory,
    env_faults,
    url_fault,
)
from rankfold.reconciler.source.invalid import Fault, InvalidInput
from rankfold.reconciler.source.parse_cache import ParseCache
from rankfold.reconciler.source.schemas import (
    ENV,
    load_schema,
    not_built,
    schema_faults,
)

KINDS = ("Pool", "Job", "Service", "Policy")
API_VERSION = "rankfold/v1alpha1"
FLEET_DEVICES_MAX = 1 << 16
DEFAULT_MEMORY = {"cpu": DEVICE_MEMORY_MIN}  # a job there has no memory of the device
PERIOD_MIN_S = 60  # for which a fraction is measured
WORD_BYTES_MAX = (1 << 17) - 1  # MAX_ARG_STRLEN without the zero byte: Linux's limit per word
PATH_BYTES_MAX = 4095
REPLICA = "REPLICA"  # environment variable that has the number of a replica
FAULTS_MAX = 100  # most faults reported of a file


def shown(path: yamldoc.Path) -> str:
    """A field's path for people, without values of `env` that were written in place of names."""
    if path[:2] == ENV:
        path = path[:3]
    named = path and isinstance(path[-1], str) and path[-1].partition("=")
    return yamldoc.dotted((*path[:-1], named[0]) if named and named[1] else path) or "-"


def _is_null(value: Any, path: yamldoc.Path) -> bool:
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return value is None


@dataclass(frozen=True)
class File:
    """A file that was read. `path`: its name in the origins of accepted objects."""

    path: str
    documents: int  # without empty ones
    lines: int
    ended: bool  # its last line ends with a newline


@dataclass(frozen=True)
class Place:
    """Where a file is: its folder, and the tree `root` in which it was found."""

    folder: str
    root: str

    def workdir(self, given: str) -> str:
        """An absolute path with links resolved, except a link that is the root itself: the next
        release that this link leads to may describe the same job."""
        real = Path(os.path.realpath(Path(self.folder) / given))  # no error for a loop
        root = Path(os.path.realpath(self.root))
        return str(Path(self.root) / real.relative_to(root) if real.is_relative_to(root) else real)


@dataclass
class Loaded:
    """The content of the files. `desired` is valid only if there is no fault."""

    desired: Desired = field(default_factory=Desired)
    origins: dict[tuple[str, str], Origin] = field(default_factory=dict)  # (kind, name)
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    saved_at: dict[str, float] = field(default_factory=dict)  # file → wall clock
    files: dict[str, File] = field(default_factory=dict)  # by the name that faults use
    documents: dict[tuple[str, str], yamldoc.Document] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)  # bugs, for the log

    def fault(self, kind: str, name: str, where: str, reason: str) -> Fault:
        """A fault in an object's field, such as ``spec.command``."""
        document = self.documents[kind, name]
        return Fault(
            self.origins[kind, name].file, document.line(tuple(where.split("."))), where, reason
        )

    def policy_fault(self, where: str, reason: str) -> Fault:
        """A fault in a field of a Policy, whether or not a Policy has the field."""
        path = tuple(where.split("."))
        for (kind, name), document in self.documents.items():
            if kind == "Policy" and path[-1] in document.value["spec"]:
                return self.fault(kind, name, where, reason)
        return Fault("-", 1, where, reason)

    def check(self) -> Loaded:
        if self.faults:
            raise InvalidInput(self.faults)
        return self


# ---- files ---------------------------------------------------------------------------------


def load_dir(
    *places: Path,
    files_at: Callable[[Path], list[Path]] | None = None,
    read: Callable[[Path, Path], trees.Found] = trees.read,
    parsed: ParseCache | None = None,
    quotas: Mapping[str, QuotaRule] | None = None,
) -> Loaded:
    """Read every ``*.yaml`` and ``*.yml`` below the given folders (or the given files).

    files_at: returns the files of a place, if they are known without a search.
    read: reads a file at or below a place.
    parsed: cache of what was parsed there before.
    quotas: those that exist if no file has a Policy with quotas.
    """
    files_read: list[trees.Found] = []
    faults: list[Fault] = []
    for place in places:
        try:
            files = (files_at or yaml_files)(place)
        except OSError as error:
            faults.append(Fault(legible.name(error.filename), 1, "-", _unreadable(error)))
            continue
        for file in files:
            try:
                files_read.append(read(file, place))
            except OSError as error:
                files_read.append(trees.Found(legible.name(file), problem=_unreadable(error)))
        if not files:
            problem = "holds no *.yaml file" if place.is_dir() else "is no file and no folder"
            problem = problem if place.exists() else "does not exist"
            faults.append(Fault(legible.name(place), 1, "-", problem))
    return load_found(files_read, faults, parsed=parsed, quotas=quotas)


def yaml_files(place: Path) -> list[Path]:
    """The files of desired state at a place, without hidden ones; links may lead anywhere.

    Raises OSError for a folder that cannot be read, because its files are not gone.
    """
    if not place.is_dir():
        return [place] if place.is_file() else []

    def fail(error: OSError) -> None:
        raise error

    result = []
    for folder, folders, names in os.walk(place, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(folder, name) for name in names):
            if trees.counts(file.name) and file.is_file():
                result.append(file)
    return sorted(result)


def load_found(
    found: Iterable[trees.Found],
    faults: Iterable[Fault] = (),
    workdir: str | None = None,
    parsed: ParseCache | None = None,
    quotas: Mapping[str, QuotaRule] | None = None,
) -> Loaded:
    """Check and normalise the files of a directory or a commit.

    faults: faults found before.
    workdir: for jobs that give none; default: their file's folder.
    parsed: cache of what was parsed of that source before.
    quotas: those that exist if no file has a Policy with quotas.
    """
    texts: dict[str, str] = {}
    workdirs: dict[str, str | Place] = {}
    found_faults, by_name = list(faults), {each.name: each for each in found}
    for name, each in by_name.items():
        if each.folder is not None and each.root is not None:
            workdirs[name] = Place(each.folder, each.root)
        try:
            texts[name] = _decoded(each)
        except InvalidInput as error:
            found_faults += error.faults
    loaded = load_texts(texts, workdirs, workdir, parsed, quotas)
    loaded.faults = sorted({*found_faults, *loaded.faults})
    for name, file in loaded.files.items():
        each = by_name[name]
        loaded.files[name] = replace(file, path=each.path)
        if each.saved_at is not None:
            loaded.saved_at[name] = each.saved_at
    return loaded


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {error.strerror}"


def _decoded(file: trees.Found) -> str:
    """The text of a file, with ``\n`` as line ends. Raises InvalidInput."""
    line, reason = 1, file.problem
    if not file.is_utf8:
        reason = f"its path {file.path} is not UTF-8: rename it"
    elif len(file.data) > trees.BYTES_MAX:
        reason = f"is too large: over {trees.BYTES_MAX >> 20} MiB"
    if not reason:
        try:
            return file.data.decode().replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError as error:
            line = file.data.count(b"\n", 0, error.start) + 1
            byte = f"byte 0x{file.data[error.start]:02x}"
            reason = f"cannot be read: it is not UTF-8 ({error.reason}, {byte})"
    raise InvalidInput([Fault(file.name, line, "-", reason)])


def load_texts(
    texts: Mapping[str, str],
    workdirs: Mapping[str, str | Place],
    workdir: str | None = None,
    parsed: ParseCache | None = None,
    quotas: Mapping[str, QuotaRule] | None = None,
) -> Loaded:
    """Check and normalise texts.

    workdirs: the base of relative workdirs in each file; a file without an entry (bare or remote
        repository) needs absolute ones.
    workdir: for jobs that give none.
    quotas: those that exist if no text has a Policy with quotas.
    """
    reader, parsed = _Reader(workdirs, workdir), parsed or ParseCache()
    files: dict[str, File] = {}
    for file, text in sorted(texts.items()):
        breaks = len(re.findall(r"\r\n|\r|\n", text))
        ended = not text or text.endswith(("\n", "\r"))
        files[file] = File(file, 0, breaks + (not ended), ended)
        with reader.reporting(file):
            documents, problems = parsed.parse(text)
            files[file] = replace(files[file], documents=len(documents))
            reader.read_file(file, documents, problems)
    parsed.keep_used()
    reader.check_fleet(quotas or {})
    return Loaded(
        Desired(
            reader.pools,
            reader.jobs,
            reader.checkpoint_store,
            GROWTH_DELAY_S if reader.growth_delay_s is None else reader.growth_delay_s,
            reader.preemption_delay_s or 0.0,
            reader.max_wait_s or 0.0,
            reader.disturbances or {},
            reader.tiers or {},
            reader.quotas or {},
            reader.defragmentation or Defragmentation(),
        ),
        reader.origins,
        sorted(set(reader.faults)),
        sorted(set(reader.warnings)),
        documents=reader.lines,
        files=files,
        failures=reader.failures,
    )


class _Reader:
    """Collects the objects and faults of one set of files."""

    def __init__(self, workdirs: Mapping[str, str | Place], workdir: str | None):
        self.workdirs, self.workdir = workdirs, workdir
        self.pools: dict[str, Pool] = {}
        self.jobs: dict[str, Job] = {}
        self.origins: dict[tuple[str, str], Origin] = {}
        self.lines: dict[tuple[str, str], yamldoc.Document] = {}
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []
        self.failures: list[Exception] = []
        self.broken_pool = False
        self.domains: dict[str, str] = {}  # node → its domain
        self.device_count = 0
        self.checkpoint_store = ""
        self.growth_delay_s: float | None = None
        self.preemption_delay_s: float | None = None
        self.max_wait_s: float | None = None
        self.disturbances: dict[str, int] | None = None
        self.tiers: dict[str, TierRule] | None = None
        self.quotas: dict[str, QuotaRule] | None = None
        self.defragmentation: Defragmentation | None = None
        self.quotas_at: tuple[str, yamldoc.Document] | None = None
        self.broken_policy = False

    def read_file(
        self, file: str, documents: list[yamldoc.Document], problems: list[yamldoc.Problem]
    ) -> None:
        before = len(self.faults)
        self.faults += [Fault(file, p.line, shown(p.path), p.reason) for p in problems]
        for document in documents:
            if len(self.faults) - before > FAULTS_MAX:
                self.broken_pool = True  # it may have been a pool
            else:
                with self.reporting(file, document):
                    self.read(file, document)
        if left := self.faults[before + FAULTS_MAX :]:
            more = Fault(file, left[0].line, "-", "has more faults, which are not listed")
            self.faults[before + FAULTS_MAX :] = [more]

    def fault(self, file: str, doc: yamldoc.Document, path: yamldoc.Path, reason: str) -> None:
        where = ENV if path[:2] == ENV and _is_null(doc.value, path) else path
        self.faults.append(Fault(file, doc.line(path), shown(where), reason))

    @contextlib.contextmanager
    def reporting(self, file: str, doc: yamldoc.Document | None = None) -> Iterator[None]:
        """Turn any exception while a file is read into a fault of that file, and check the
        others."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - see above
            kind = type(error).__name__  # without its message, which may contain a value of `env`
            reason = f"cannot be read: an internal error of rankfold ({kind})"
            self.faults.append(Fault(file, doc.line(()) if doc else 1, "-", reason))
            self.broken_pool = True  # it may have been a pool
            self.failures.append(error)

    def read(self, file: str, doc: yamldoc.Document) -> None:
        before = len(self.faults)
        kind = doc.value.get("kind") if isinstance(doc.value, dict) else None
        if kind not in KINDS:
            if doc.unusable:  # perhaps because of that; it may have been a pool
                self.broken_pool = True
                return None
            got = f", not {yamldoc.excerpt(repr(kind))}" if kind else ""
            reason = f"must be one of {', '.join(KINDS)}{got}"
            return self.fault(file, doc, ("kind",), reason)
        if doc.checked is None:
            schema = load_schema(kind)
            faults_found = [*schema_faults(schema, doc.value), *not_built(schema, doc.value)]
            doc.checked = [each for each in faults_found if not _touches(each[0], doc.unusable)]
        for path, reason in doc.checked:
            self.fault(file, doc, path, reason)
        if doc.unusable or len(self.faults) > before:
            self.broken_pool = self.broken_pool or kind == "Pool"
            self.broken_policy = self.broken_policy or kind == "Policy"
            return None
        if kind != "Service":  # its replicas have names
            self._name(file, doc, kind, doc.value["metadata"]["name"])
        if kind == "Pool":
            self._pool(file, doc)
        elif kind == "Job":
            self._job(file, doc)
        elif kind == "Service":
            self._service(file, doc)
        else:
            self._policy(file, doc)
        return None

    def _policy(self, file: str, doc: yamldoc.Document) -> None:
        self.growth_delay_s = self._delay(file, doc, "growthDelay", self.growth_delay_s)
        self.preemption_delay_s = self._delay(file, doc, "preemptionDelay", self.preemption_delay_s)
        self.max_wait_s = self._delay(file, doc, "maxWait", self.max_wait_s)
        if (tiers := doc.value["spec"].get("tiers")) is not None:
            self._tiers(file, doc, tiers)
        if (disturbances := doc.value["spec"].get("disturbances")) is not None:
            found = {tier: int(most) for tier, most in disturbances.items()}
            if self.disturbances not in (None, found):
                reason = "another Policy has other numbers: a fleet has one list"
                self.fault(file, doc, ("spec", "disturbances"), reason)
            self.disturbances = found
        if (quotas := doc.value["spec"].get("quotas")) is not None:
            self._quotas(file, doc, quotas)
        if (given := doc.value["spec"].get("defragmentation")) is not None:
            self._defragmentation(file, doc, given)
        url = doc.value["spec"].get("checkpointStore", "")
        self._fits(file, doc, ("spec", "checkpointStore"), url, PATH_BYTES_MAX)
        if url and self.checkpoint_store not in ("", url):
            other = yamldoc.excerpt(self.checkpoint_store)
            reason = f"another Policy has {other}: a fleet has one store"
            self.fault(file, doc, ("spec", "checkpointStore"), reason)
        self.checkpoint_store = url or self.checkpoint_store

    def _delay(
        self, file: str, doc: yamldoc.Document, field: str, earlier: float | None
    ) -> float | None:
        """Seconds; earlier: those of another Policy."""
        delay = doc.value["spec"].get(field)
        if delay is None:
            return earlier
        seconds = float(seconds_of(delay))
        if earlier not in (None, seconds):
            reason = f"another Policy has {earlier:g} s: a fleet has one"
            self.fault(file, doc, ("spec", field), reason)
        return seconds

    def _tiers(self, file: str, doc: yamldoc.Document, tiers: dict[str, Any]) -> None:
        found = {}
        for tier, given in tiers.items():
            period = seconds_of(given.get("period", "1h"))
            if period < PERIOD_MIN_S:
                reason = f"must be at least {PERIOD_MIN_S}s, not {period}s"
                self.fault(file, doc, ("spec", "tiers", tier, "period"), reason)
            found[tier] = TierRule(float(given["fraction"]), float(period))
        if self.tiers not in (None, found):
            reason = "another Policy has other tiers: a fleet has one list"
            self.fault(file, doc, ("spec", "tiers"), reason)
        self.tiers = found

    def _defragmentation(self, file: str, doc: yamldoc.Document, given: dict[str, Any]) -> None:
        windows = []
        for at, window in enumerate(given.get("windows", ())):
            begin, end = (int(time[:2]) * 60 + int(time[3:]) for time in window.split("-"))
            if begin == end:
                reason = f'begins when it ends, at {window[:5]}; all day is "00:00-24:00"'
                self.fault(file, doc, ("spec", "defragmentation", "windows", at), reason)
            windows.append((begin, end))
        found = Defragmentation(tuple(windows), tuple(given.get("exempt", ())))
        if self.defragmentation not in (None, found):
            reason = f"another Policy has {self.defragmentation}: a fleet has one"
            self.fault(file, doc, ("spec", "defragmentation"), reason)
        self.defragmentation = found

    def _quotas(self, file: str, doc: yamldoc.Document, quotas: dict[str, Any]) -> None:
        found = {}
        for name, given in quotas.items():
            devices, lend = int(given["devices"]), given.get("lend")
            if lend is not None and lend > devices:
                reason = f"must be at most devices ({devices}), not {lend}"
                self.fault(file, doc, ("spec", "quotas", name, "lend"), reason)
            borrow = given.get("borrow")
            found[name] = QuotaRule(
                devices,
                float(given.get("weight", 1.0)),
                None if borrow is None else int(borrow),
                None if lend is None else int(lend),
            )
        if self.quotas not in (None, found):
            reason = "another Policy has other quotas: a fleet has one list"
            self.fault(file, doc, ("spec", "quotas"), reason)
        self.quotas, self.quotas_at = found, (file, doc)

    def _name(self, file: str, doc: yamldoc.Document, kind: str, name: str) -> None:
        key = (kind, name)
        if key in self.origins:
            reason = f"there is a {kind} {name!r} already, in {self.origins[key]}; rename one"
            self.fault(file, doc, ("metadata", "name"), reason)
        self.origins.setdefault(key, Origin(file, doc.line(("metadata", "name"))))
        self.lines.setdefault(key, doc)

    def _pool(self, file: str, doc: yamldoc.Document) -> None:
        name = doc.value["metadata"]["name"]
        devices: list[Device] = []
        index: dict[str, int] = {}
        first_core = 0
        groups = doc.value["spec"]["devices"]
        self.device_count += sum(int(group.get("count", 1)) for group in groups)
        if self.device_count > FLEET_DEVICES_MAX:
            listed = count(self.device_count, "device")
            reason = f"{listed} with those before: at most {FLEET_DEVICES_MAX}"
            self.fault(file, doc, ("spec", "devices"), reason)
            self.broken_pool = True
            return
        for at, group in enumerate(groups):
            domain, node = group.get("domain", ""), group.get("node", "")
            if node and self.domains.setdefault(node, domain) != domain:
                other = self.domains[node] or "the one without a name"
                reason = (
                    f"node {node} is in domain {domain or 'without a name'} here, in {other} before"
                )
                self.fault(file, doc, ("spec", "devices", at, "node"), reason)
            path = ("spec", "devices", at, "memory")
            memory = device_memory(group.get("memory", DEFAULT_MEMORY.get(group["type"], "1GiB")))
            if memory is None:
                got = yamldoc.excerpt(repr(group.get("memory")))
                reason = f"must be {DEVICE_MEMORY_WORDS}, not {got}"
                self.fault(file, doc, path, reason)
                self.broken_pool = True
                continue
            cores = int(group.get("cores", 1)) if group["type"] == "cpu" else 0
            if "cores" in group and not cores:
                reason = f"devices of type {group['type']} have none: remove it"
                self.fault(file, doc, ("spec", "devices", at, "cores"), reason)
            try:
                runtime = runtimes.of_pool(group["type"], group.get("runtime", ""))
            except ValueError as error:
                self.fault(file, doc, ("spec", "devices", at, "runtime"), str(error))
                runtime = ""
            for _ in range(int(group.get("count", 1))):
                number = index[group["type"]] = index.get(group["type"], -1) + 1
                devices.append(
                    Device(
                        f"{name}/{group['type']}-{number}",
                        group["type"],
                        memory,
                        group.get("computeCapability", CAPABILITIES[group["type"]]),
                        float(group.get("speed", 1.0)),
                        domain=domain,
                        node=node,
                        core_count=cores,
                        first_core=first_core,
                        runtime=runtime,
                    )
                )
                first_core += cores
        drained = self._drained(file, doc, devices)
        pool = Pool(
            name,
            tuple(
                msgspec.structs.replace(d, drained=True) if d.name in drained else d
                for d in devices
            ),
        )
        if reason := not_kept(pool):
            self.fault(file, doc, ("spec",), reason)
            self.broken_pool = True
        self.pools.setdefault(name, pool)

    def _drained(self, file: str, doc: yamldoc.Document, devices: list[Device]) -> set[str]:
        """The devices of a pool that are drained: each is given by its name, or with its node."""
        drained: set[str] = set()
        given: set[str] = set()
        for at, entry in enumerate(doc.value["spec"].get("drain", ())):
            those = {d.name for d in devices if entry in (d.name, d.node)}
            reason = ""
            if entry in given:
                reason = f"{entry} is given twice; remove one"
            elif not those:
                pool = doc.value["metadata"]["name"]
                near = difflib.get_close_matches(entry, [d.name for d in devices], 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                reason = f"pool {pool} has no device or node {yamldoc.excerpt(entry)}{hint}"
            if reason:
                self.fault(file, doc, ("spec", "drain", at), reason)
                self.broken_pool = True
            given.add(entry)
            drained |= those
        return drained

    def _job(self, file: str, doc: yamldoc.Document) -> None:
        before, spec = len(self.faults), doc.value["spec"]
        given = {each: field.value(doc.value) for each, field in fields_of(Job).items()}
        name, world_size = given["name"], given["world_size"]
        if given["gpus"] == 0:
            given["suspend"] = True
        gpus = given["gpus"] = given["gpus"] or most_devices(world_size)
        most_at = (
            ("spec", "gpus", "max") if isinstance(spec.get("gpus"), dict) else ("spec", "gpus")
        )
        if reason := too_many_devices(gpus, world_size):
            self.fault(file, doc, most_at, reason)
        elif isinstance(spec.get("gpus"), dict):
            self._range(file, doc, given)
        self._program(file, doc)
        types = spec.get("deviceTypes", ())
        for where, problem in runtimes.faults(
            given["runtime"], spec["command"], types, given["determinism"]
        ):
            self.fault(file, doc, ("spec", where), problem)
        given["device_types"] = given["device_types"] or runtimes.device_types(
            given["runtime"], given["determinism"]
        )
        parallelism = spec.get("parallelism", {})
        if parallelism.get("data", world_size) != world_size:
            reason = f"is not implemented yet; only its default, worldSize ({world_size}), is"
            self.fault(file, doc, ("spec", "parallelism", "data"), reason)
        default = self.workdir if "workdir" not in spec else None
        given["workdir"] = default or self._path(file, doc, "workdir", given["workdir"])
        # `Job` has defaults for the fields that have none in files.
        job = Job(**{k: v for k, v in given.items() if v is not None})
        if len(self.faults) == before and (reason := not_kept(job)):
            self.fault(file, doc, ("spec",), reason)
        self.jobs.setdefault(name, job)

    def _program(self, file: str, doc: yamldoc.Document) -> None:
        """Check command and environment."""
        spec = doc.value["spec"]
        for problem in command_faults(spec["command"]):
            self.fault(file, doc, ("spec", "command"), problem)
        for index, word in enumerate(spec["command"]):
            self._fits(file, doc, ("spec", "command", index), word, WORD_BYTES_MAX)
        for key, value in spec.get("env", {}).items():
            word = f"{key}={value}"
            self._fits(file, doc, ("spec", "env", key), word, WORD_BYTES_MAX)
        for problem_key, problem in env_faults(spec.get("env", {})):
            self.fault(file, doc, ("spec", "env", problem_key), problem)

    def _service(self, file: str, doc: yamldoc.Document) -> None:
        """A service is one job of one rank for each replica."""
        before, spec = len(self.faults), doc.value["spec"]
        self._program(file, doc)
        if REPLICA in spec.get("env", {}):
            reason = "is set by rankfold for each replica; leave it out"
            self.fault(file, doc, ("spec", "env", REPLICA), reason)
        service = self._replicas(file, doc)
        default = self.workdir if "workdir" not in spec else None
        workdir = default or self._path(file, doc, "workdir", spec.get("workdir", "."))
        env = tuple(sorted(spec.get("env", {}).items()))
        for number in range(service.most):
            job = Job(
                service.replica(number),
                tuple(spec["command"]),
                workdir,
                1,
                1,
                env=(*env, (REPLICA, str(number))),
                device_types=tuple(spec.get("deviceTypes", ())),
                tier=spec.get("tier", "premium"),
                priority=int(spec.get("priority", 0)),
                quota=spec.get("quota", ""),
                save_every_s=0,
                service=service,
                replica=number,
            )
            if len(self.faults) == before and (reason := not_kept(job)):
                self.fault(file, doc, ("spec",), reason)
            self._name(file, doc, "Job", job.name)
            self.jobs.setdefault(job.name, job)

    def _replicas(self, file: str, doc: yamldoc.Document) -> Service:
        """How many replicas a service has."""
        name, spec = doc.value["metadata"]["name"], doc.value["spec"]
        given, load = spec["replicas"], spec.get("load")
        ranged = isinstance(given, dict)
        least, most = (given.get("min", 1), given["max"]) if ranged else (given, given)
        if least > most:
            reason = f"must be at most max ({most}), not {least}"
            self.fault(file, doc, ("spec", "replicas", "min"), reason)
        if load is None:
            if ranged:
                reason = "must be one number, or there must be a load that decides"
                self.fault(file, doc, ("spec", "replicas"), reason)
            return Service(name, int(most), int(most))
        if not ranged:
            reason = "must be a range, {min: …, max: …}, because there is a load"
            self.fault(file, doc, ("spec", "replicas"), reason)
        delay = seconds_of(load.get("fallDelay", "30s"))
        source = self._load(file, doc, load)
        return Service(name, int(least), int(most), source, float(load["perReplica"]), delay)

    def _load(self, file: str, doc: yamldoc.Document, load: dict[str, Any]) -> str:
        """As in `Service.load`."""
        if ("file" in load) == ("url" in load):
            self.fault(file, doc, ("spec", "load"), "must have a file or a url, one of the two")
        if "url" not in load:
            if "metric" in load:
                reason = "belongs to a url; a file holds one number"
                self.fault(file, doc, ("spec", "load", "metric"), reason)
            return self._path(file, doc, "load.file", load["file"]) if "file" in load else ""
        if reason := url_fault(load["url"]):
            self.fault(file, doc, ("spec", "load", "url"), reason)
        metric = f"#{load['metric']}" if "metric" in load else ""
        return f"{load['url']}{metric}"

    def _range(self, file: str, doc: yamldoc.Document, given: dict[str, Any]) -> None:
        """Check a range of devices; one of a single number is that number."""
        most, demand = given["gpus"], given["demand"]
        least = 1 if given["gpus_min"] is None else given["gpus_min"]
        given["gpus_min"] = least if least < most else None
        if least > most:
            reason = f"must be at most max ({most}), not {least}"
            self.fault(file, doc, ("spec", "gpus", "min"), reason)
        elif demand is not None and not least <= demand <= most:
            reason = f"must be from min ({least}) to max ({most}), not {demand}"
            self.fault(file, doc, ("spec", "gpus", "demand"), reason)
        if least < most and given["determinism"] == "D0":
            reason = "must be one number: with determinism D0 the bits depend on it"
            self.fault(file, doc, ("spec", "gpus"), reason)

    def _fits(
        self, file: str, doc: yamldoc.Document, path: yamldoc.Path, text: str, most: int
    ) -> bool:
        size = len(text.encode())
        if size > most:
            self.fault(file, doc, path, f"must have at most {count(most, 'byte')}, not {size}")
        return size <= most

    def _path(self, file: str, doc: yamldoc.Document, field: str, workdir: str) -> str:
        """An absolute path that a field of `spec` gives, relative to its file or not."""
        path = ("spec", *field.split("."))
        if not self._fits(file, doc, path, workdir, PATH_BYTES_MAX) or os.path.isabs(workdir):
            return workdir
        base = self.workdirs.get(file)
        if isinstance(base, Place):
            workdir = base.workdir(workdir)
            self._fits(file, doc, path, workdir, PATH_BYTES_MAX)
            return workdir
        if base is None:
            reason = "must be an absolute path: the repository has no work tree here"
            self.fault(file, doc, path, reason)
            return workdir
        resolved = os.path.realpath(os.path.join(base, workdir))  # no error for a loop of links
        self._fits(file, doc, path, resolved, PATH_BYTES_MAX)
        return resolved

    def check_fleet(self, quotas: Mapping[str, QuotaRule]) -> None:
        """Refuse jobs that request more devices than all pools in these files have, used or not,
        and quotas that have more; and jobs of quotas that do not exist, or that are too small."""
        if not self.broken_policy:
            self._check_jobs_of_quotas(self.quotas or quotas)
        if not self.pools or self.broken_pool:
            return
        self._check_quotas()
        groups = Groups(d for pool in self.pools.values() for d in pool.devices)
        for job in self.jobs.values():
            most = groups.most(job, Record(job.name))
            place = ("spec", "gpus", "min") if job.elastic else ("spec", "gpus")
            needed: dict[yamldoc.Path, int] = {place: job.least}
            if job.service is not None:
                needed = {("spec", "replicas"): job.least}
            if job.demand is not None:
                needed["spec", "gpus", "demand"] = job.demand
            for path, number in needed.items():
                if number > most:
                    origin, doc = self.origins["Job", job.name], self.lines["Job", job.name]
                    kind = " or ".join(job.device_types) or "any kind"
                    if job.locality != "any":
                        kind = f"{kind} in one {job.locality}"
                    reason = f"requests {count(number, 'device')}; the pools have {most} of {kind}"
                    self.fault(origin.file, doc, path, reason)

    def _check_jobs_of_quotas(self, quotas: Mapping[str, QuotaRule]) -> None:
        for job in self.jobs.values():
            if not job.quota or job.replica:  # a service is checked with its first replica
                continue
            origin, doc = self.origins["Job", job.name], self.lines["Job", job.name]
            rule = quotas.get(job.quota)
            if rule is None:
                known = f"the Policy has {', '.join(sorted(quotas))}" if quotas else ""
                reason = f"there is no quota {job.quota!r}; {known or 'no Policy has quotas'}"
                self.fault(origin.file, doc, ("spec", "quota"), reason)
                continue
            path = ("spec", "gpus", "min") if job.elastic else ("spec", "gpus")
            least = job.least
            if job.service is not None:
                path, least = ("spec", "replicas"), job.service.least
            if rule.borrow is not None and least > rule.devices + rule.borrow:
                needs = count(least, "device")
                reason = (
                    f"requests {needs}; its quota {job.quota} has {rule.devices} and borrows "
                    f"{rule.borrow} at most"
                )
                self.fault(origin.file, doc, path, reason)

    def _check_quotas(self) -> None:
        """Refuse quotas that together have more devices than the pools."""
        if not self.quotas or self.quotas_at is None:
            return
        most = sum(len(pool.devices) for pool in self.pools.values())
        total = 0
        for name, rule in self.quotas.items():
            total += rule.devices
            if total > most:
                reason = f"{count(total, 'device')} with those before; the pools have {most}"
                self.fault(*self.quotas_at, ("spec", "quotas", name, "devices"), reason)
                return


def _touches(path: yamldoc.Path, unusable: Iterable[yamldoc.Path]) -> bool:
    """Whether a value is one of those that cannot be used, or is in one, or contains one."""
    return any(path[: len(each)] == each[: len(path)] for each in unusable)


def not_kept(made: Job | Pool) -> str:
    """Why the journal could not return this object unchanged; empty if it can."""
    try:
        kept = msgspec.json.decode(msgspec.json.encode(made), type=type(made))
    except (msgspec.MsgspecError, OverflowError, UnicodeError, RecursionError) as error:
        return f"cannot be kept: {error}"
    return "" if kept == made else "cannot be kept as it is written"
