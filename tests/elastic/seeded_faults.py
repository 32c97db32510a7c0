"""Faults seeded into the elastic runtime. The tests need PyTorch's CPU build."""

from __future__ import annotations

from support.seeding import Table

BITS = "tests/elastic/test_bits.py"
SUMS = f"{BITS}::test_sums_are_those_of_gloo[3]"

FEATURES = "tests/elastic/test_features.py"
RESIZE = f"{FEATURES}::test_features_have_the_output_of_stock_processes"
RESUME = f"{FEATURES}::test_a_killed_run_continues_in_other_processes"
REQUESTS = "tests/elastic/test_requests.py::test_requests_change_no_bit"
DISK = "tests/elastic/test_requests.py::test_a_run_on_a_full_disk_refuses_changes_and_continues"
HANGS = "tests/elastic/test_requests.py::test_a_worker_that_hangs_is_named"
ASK = "tests/elastic/test_requests.py::test_a_request_to_a_run_that_is_killed_is_refused"
GENERATED = (
    "tests/elastic/test_generated.py::test_a_generated_model_has_the_bits_of_stock_processes"
)
THREADS = "tests/elastic/test_requests.py::test_the_number_of_threads_stays_on_any_number_of_cores"
REFUSALS = "tests/elastic/test_refusals.py::test_a_script_is_refused_with_rank_and_reason"
ONCE = f"{FEATURES}::test_a_worker_has_what_a_process_has_once[--processes=1]"
WRAPPED = f"{FEATURES}::test_workers_have_one_copy_of_the_parameters_once_they_are_wrapped"
COPIES = f"{FEATURES}::test_waiting_workers_have_one_copy_of_their_gradients"
KILL = f"{FEATURES}::test_a_killed_process_costs_at_most_the_interval"

DEFAULT = "torch.set_float32_matmul_precision: a default of the whole process"
SAVED = "tests/elastic/test_saved.py::test_state_of_another_script_is_refused"
DAMAGED = "tests/elastic/test_saved.py::test_damaged_state_is_refused"
ONCE_SAVED = "tests/elastic/test_saved.py::test_equal_gradients_are_saved_once"
OWN_ZEROS = (
    "tests/elastic/test_saved.py::test_gradients_that_are_only_equal_stay_those_of_their_worker"
)
NAMELESS = (
    "tests/elastic/test_saved.py::"
    "test_state_that_all_processes_have_written_is_used_without_its_name"
)
ENDS = "tests/elastic/test_ends.py"
FAILS = f"{ENDS}::test_a_run_that_fails_names_the_worker_and_the_reason"
ELIGIBLE = "tests/elastic/test_eligible.py"
WRITTEN = f"{FEATURES}::test_output_of_libraries_and_programs_is_in_the_log_of_its_worker"
EDITED_MODULE = f"{FEATURES}::test_a_run_keeps_the_modules_of_its_script"
EDITED = f"{FEATURES}::test_a_run_keeps_the_script_that_it_began_with"

TABLE: Table = {
    "elastic/process.py": {
        f"{FEATURES}::test_workers_of_a_process_share_one_heap": {
            "heap-per-worker": ("libc.mallopt(M_ARENA_MAX, 1)", "pass"),
        },
        f"{FEATURES}::test_a_worker_alone_in_its_process_keeps_memory_for_its_next_step": {
            "freed-memory-is-returned": ("if workers == 1 and", "if False and"),
        },
        f"{ENDS}::test_a_forked_process_is_no_worker": {
            "forked-process-ends-as-a-worker": ("if self._host.forked:", "if False:"),
        },
        f"{REFUSALS}[compiled_loss-torch.compile]": {
            "compiled-functions-run": (
                "    if current.worker() is not None:\n        raise",
                "    if False:\n        raise",
            ),
        },
        f"{REFUSALS}[graph-CUDA graphs]": {
            "graphs-begin": ("    private.refuse_graphs(_refuse_in_worker)\n", ""),
        },
        FAILS: {
            "failure-not-reported": (
                'send_failed(self._host.index, f"rank {rank} {reason}")',
                'send_failed(self._host.index, "failed")',
            ),
        },
        EDITED: {
            "script-read-again": (
                "exec(self._script.code, main.__dict__)",
                "exec(self._script.path.read_text(), main.__dict__)",
            ),
        },
    },
    "elastic/generators.py": {
        "tests/elastic/test_generators.py": {
            "second-number-is-lost": ("        numpy.random.set_state(self._state)\n", ""),
            "copies-are-of-this-package": (
                "return stock.__reduce__()",
                "return super().__reduce__()",
            ),
        },
    },
    "elastic/context.py": {
        ONCE: {
            "folder-of-another-worker": ("        os.chdir(context.folder)", "        pass"),
            "dtype-of-another-worker": ("    torch.set_default_dtype(context.dtype)\n", ""),
            "streams-of-another-worker": (
                "    sys.stdout, sys.stderr = context.streams\n",
                "",
            ),
        },
        THREADS: {
            "threads-of-the-cores": (
                "    if torch.get_num_threads() != count:",
                "    if False:",
            ),
        },
        WRITTEN: {
            "descriptors-of-the-first-worker": ("    write_to(context.output)\n", ""),
        },
    },
    "elastic/imports.py": {
        EDITED_MODULE: {
            "module-read-again": (
                "hashlib.sha256(os.fsencode(path)).hexdigest()",
                "str(os.getpid())",
            ),
        },
    },
    "elastic/eligibility.py": {
        f"{ELIGIBLE}::test_a_model_of_matrix_products_may_mix_types_at_a_price": {
            "both-sides-with-d2": (
                "in (plain, {**plain, **determinism.CODE_PATH})",
                "in 2 * ({**plain, **determinism.CODE_PATH},)",
            ),
        },
        f"{ELIGIBLE}::test_operators_that_no_comparison_covers_keep_a_job_to_one_type": {
            "onednn-unnoticed": ("- ELEMENTWISE else", "and False else"),
        },
    },
    "elastic/operators.py": {
        f"{ELIGIBLE}::test_operators_that_no_comparison_covers_keep_a_job_to_one_type": {
            "the-model-itself-runs": ("    model = copy.deepcopy(model)\n", ""),
            "generators-go-on": ("        context.load_generators(generators)", "        pass"),
        },
    },
    "elastic/host.py": {
        RESIZE: {
            "broadcast-of-what-its-rank-changes": (
                "(like if source is None else source).detach().clone()",
                "(like if source is None else source).detach()",
            ),
        },
        f"{REFUSALS}[precision-{DEFAULT}]": {
            "changed-default-unnoticed": ("if now[name] != self._defaults[name]", "if False"),
        },
        f"{ENDS}::test_a_forked_process_that_trains_is_refused": {
            "forked-process-trains": ("        if self.forked:", "        if False:"),
        },
        FAILS: {
            "rank-that-runs-unnoticed": (
                "        self.stage.cut.runs(self.index, rank)\n",
                "",
            ),
        },
        f"{ENDS}::test_new_seeds_and_printed_bytes_are_those_of_stock_processes": {
            "seeds-of-another-worker": ("        context.load(saved)\n", ""),
        },
    },
    "elastic/order.py": {
        SUMS: {
            "ascending-ring": ("(first - hop) % len(owner)", "(first + hop) % len(owner)"),
            "begins-at-the-next-rank": ("(each - 1) % world)", "each % world)"),
            "one-segment-more": ("2 * world)\n", "2 * world + 1)\n"),
            "adds-twice": ("values[2 if first else 0 :]", "values[1 if first else 0 :]"),
        },
    },
    "elastic/turns.py": {
        WRAPPED: {
            "values-stay-after-a-meeting": ("            meeting.values = {}", "            pass"),
        },
    },
    "elastic/buckets.py": {
        COPIES: {
            "gradients-stay-while-a-worker-waits": (
                "self._drops and self._shares and",
                "False and",
            ),
            "buckets-stay": ("        self._emptied.add(tensors[0])\n", ""),
            "sums-stay": ("            emptied.add(each)", "            pass"),
        },
        RESIZE: {
            "buckets-without-memory": (
                "\n        self._emptied.restore()\n\n",
                "\n        pass\n\n",
            ),
            "gradients-without-memory": ("            gradients.restore()", "            pass"),
            "memory-of-an-array-is-taken": (" and storage.resizable())", ")"),
            "numbers-of-uses-are-shared": (" and tensor.is_floating_point()", ""),
        },
    },
    "elastic/worker.py": {
        WRAPPED: {
            "broadcast-copies-stay": ("            self.group.forget()\n", "            pass\n"),
        },
        f"{REFUSALS}[data_set-rank 0 has set p.data of a parameter since elastic.wrap]": {
            "data-of-its-own-unnoticed": (
                "places() != first.shared_at:\n            raise",
                "places() == []:\n            raise",
            ),
        },
        RESIZE: {
            "generators-not-restored": (
                'context.load_generators(context.Generators(*saved["generators"]))',
                "pass",
            ),
            "buckets-of-a-new-reducer": (
                "            private.use_buckets(self.model, buckets)",
                "            pass",
            ),
            "each-worker-steps": (
                "    result = step()\n",
                "    result = [step() for _, step in optimizers.values()]\n",
            ),
            "state-of-static-graph-too-early": ("or self._passes != 1", "or True"),
        },
    },
    "elastic/group.py": {
        RESIZE: {
            "buckets-arranged-again": (
                "        if self._known is None:\n            return False",
                "        if True:\n            return False",
            ),
        },
    },
    "elastic/state.py": {
        THREADS: {
            "threads-of-the-new-cores": ('    context.use_threads(state["threads"])', "    pass"),
        },
        GENERATED: {
            "scheduler-begins-again": (
                'wrapped.scheduler.load_state_dict(saved["scheduler"])',
                "pass",
            ),
        },
        SAVED: {
            "another-optimizer-unnoticed": ("    if its not in (None, here):", "    if False:"),
            "fewer-groups-unnoticed": ("        if its != here:", "        if False:"),
        },
        f"{DAMAGED}[removed-gradients-0.pt]": {
            "missing-file-has-no-name": (
                "except (OSError, EOFError, RuntimeError, pickle.UnpicklingError)",
                "except ZeroDivisionError",
            ),
        },
        OWN_ZEROS: {
            "gradients-of-another-rank": ("and all(map(_same_bits, flat, its)):", "and True:"),
            "another-zero": (
                "    integer = INTEGERS[mine.element_size()]",
                "    integer = mine.dtype",
            ),
        },
        ONCE_SAVED: {
            "equal-gradients-saved-twice": ("            return rank\n", "            pass\n"),
        },
        RESUME: {
            "another-type-of-cpu-unnoticed": (
                "    if keeps_bits and saved != here:",
                "    if False:",
            )
        },
        RESIZE: {
            "buffers-of-rank-0": (
                "state: dict[str, Any] = _file(folder / sealing.own(worker.rank))",
                "state: dict[str, Any] = _file(folder / sealing.own(0))",
            ),
            "gradients-not-saved": ("parameter.grad = gradient", "pass"),
            "buffers-of-rank-0-after-no-sync": (
                'wrapped.model.require_forward_param_sync = saved["takes_buffers"]',
                "pass",
            ),
            "attributes-not-saved": (
                'vars(each).update(saved["attributes"].get(name, {}))',
                "pass",
            ),
        },
    },
    "elastic/private.py": {
        f"{FEATURES}::test_pinned_batches_are_those_of_stock_processes": {
            "batches-not-pinned": ("    if iterator._pin_memory:", "    if False:"),
        },
    },
    "elastic/data.py": {
        RESIZE: {
            "a-batch-is-dropped": (
                "        for _ in range(position):",
                "        for _ in range(position + 1):",
            ),
            "data-workers-begin-again": ("            self._states = saved.states\n", ""),
            "seed-of-the-first-sample-drawn-twice": (
                "            self.has_next()  # it",
                "            pass  # it",
            ),
        },
    },
    "elastic/cut.py": {
        "tests/elastic/test_cut.py": {
            "saved-before-the-first-step": (
                "max(self._steps[BEGUN], 0) + 1",
                "self._steps[BEGUN] + 1",
            ),
        },
        HANGS: {
            "waits-unnoticed": (
                "if not self._steps[place + WAITS] and",
                "if",
            ),
            "calls-unnoticed": (
                "and self._steps[place + CALLS] == fewest",
                "",
            ),
        },
        REQUESTS: {
            "cut-at-a-step-that-has-begun": (
                "self._steps[END] = self._steps[BEGUN] + 1",
                "self._steps[END] = self._steps[BEGUN]",
            ),
        },
    },
    "elastic/requests.py": {
        ASK: {"reset-is-an-error": ("suppress(ConnectionError)", "suppress(BlockingIOError)")},
    },
    "elastic/sealing.py": {
        f"{DAMAGED}[flipped-shared.pt]": {
            "flipped-bits-unnoticed": (
                '!= checksum.to_bytes(4, "little"):',
                '== b"":',
            ),
        },
        NAMELESS: {
            "missing-file-unnoticed": ("*map(own, range(world))]", "]"),
        },
    },
    "elastic/__main__.py": {
        NAMELESS: {
            "written-state-unused": (
                '            path.rename(path.with_name(f"step-{path.name[11:]}"))\n',
                "",
            ),
        },
    },
    "elastic/run.py": {
        "tests/elastic/test_requests.py::test_an_interrupted_run_ends_with_all_its_processes": {
            "processes-are-interrupted": (
                "        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the",
                "        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the",
            ),
        },
        THREADS: {
            "begins-with-the-threads-of-another-process": (
                "threads=_threads(saved[1])",
                "threads=1",
            ),
        },
        "tests/elastic/test_requests.py::test_a_process_runs_on_its_cores": {
            "all-cores": ("        os.sched_setaffinity(0, cores)", "        pass"),
        },
        RESUME: {
            "rendezvous-of-a-killed-run": (
                "        self._rendezvous.unlink(missing_ok=True)  # of",
                "        None  # of",
            ),
        },
        "tests/elastic/test_leaks.py::test_changes_leave_nothing[24]": {
            "descriptors-of-a-stage-stay": ("        self.cut.close()", "        pass"),
        },
        f"{BITS}::test_a_process_that_exits_before_all_its_ranks_have_ended_fails": {
            "early-exit-is-a-success": ("return EXITED_EARLY", "return status"),
        },
        f"{ENDS}::test_a_run_names_a_rank_that_has_ended_alone": {
            "ended-rank-has-no-name": ("        if not ranks:", "        if True:"),
        },
        DISK: {"unsaved-counts-as-saved": ("            if failure:", "            if False:")},
        KILL: {
            "does-not-continue": (
                "if latest is None or self._failures >= ATTEMPTS:",
                "if True:",
            ),
        },
    },
}
