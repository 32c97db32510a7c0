"""Faults seeded into what a run does differently on GPUs."""

from __future__ import annotations

from support.seeding import Table

GPU = "tests/elastic/test_gpu.py"
BITS = f"{GPU}::test_tensors_that_are_copied_and_parked_have_the_bits_of_stock_processes"
GENERATOR = f"{GPU}::test_each_worker_has_its_own_numbers_of_cudas_generator[0]"
SEES = f"{GPU}::test_a_process_sees_its_gpu_alone"
COVERED = f"{GPU}::test_a_type_of_gpu_is_refused_until_a_comparison_covers_it"
SETTINGS = f"{GPU}::test_settings_that_let_bits_vary_on_gpus_are_refused"
WAITING = f"{GPU}::test_waiting_workers_have_no_gradients_on_the_gpu"
FLEET = "tests/elastic/test_gpu_fleet.py"
RUNS = f"{FLEET}::test_a_job_runs_on_the_gpus_of_its_runtime"
ONE = f"{FLEET}::test_a_device_serves_jobs_of_one_runtime"
DEVICE = "tests/elastic/test_device.py"
DEVICES = f"{DEVICE}::test_processes_see_the_gpus_of_their_devices"
OTHER = f"{DEVICE}::test_a_gpu_that_is_not_as_its_pool_says_is_refused"

TABLE: Table = {
    "elastic/gpu.py": {
        GENERATOR: {
            "generator-is-not-restored": ("        each.set_state(state)", "        pass"),
        },
        SEES: {
            "all-gpus-are-seen": ('os.environ[VISIBLE] = gpu.name if gpu else ""', "pass"),
        },
        SETTINGS: {
            "any-algorithm": ("if not torch.are_deterministic_algorithms_enabled():", "if False:"),
            "fastest-algorithm": ("if torch.backends.cudnn.benchmark:", "if False:"),
        },
        COVERED: {
            "any-type-is-covered": ("not in covered(file):", "in []:"),
        },
    },
    "elastic/context.py": {
        GENERATOR: {
            "generator-is-not-swapped": ("    gpu.set_generator_states(context.cuda)\n", ""),
            "generator-is-not-loaded": ("    gpu.set_generator_states(generators.cuda)\n", ""),
        },
    },
    "elastic/run.py": {
        SEES: {
            "first-gpu-for-all": (
                "gpu.see(plan.gpus[index % len(plan.gpus)]",
                "gpu.see(plan.gpus[0]",
            ),
        },
        RUNS: {
            "gpus-of-the-fleet-are-not-used": ("        if request.gpus:\n", "        if False:\n"),
        },
    },
    "elastic/process.py": {
        SEES: {
            "other-gpus-are-chosen": (
                'LOCAL_RANK="0" if gpu else str(rank)',
                "LOCAL_RANK=str(rank)",
            ),
        },
    },
    "elastic/host.py": {
        COVERED: {
            "types-are-not-compared": ("                self._check_kinds()\n", ""),
            "d2-on-gpus": ("        if determinism.pinned():", "        if False:"),
        },
        f"{WAITING}[]": {
            "parked-while-others-compare": (
                "        if not self.saved_gradients:",
                "        if True:",
            ),
        },
        f"{WAITING}[accumulate]": {
            "gradients-stay-parked": ("            each.restore()\n", "            pass\n"),
        },
    },
    "elastic/buckets.py": {
        f"{WAITING}[]": {
            "gradients-stay-on-the-gpu": (
                "                self._gradients.add(each.grad)",
                "                pass",
            ),
            "gradients-are-not-copied-back": (
                "            tensor.detach().copy_(copy)",
                "            pass",
            ),
        },
        f"{BITS}[--processes=1]": {
            "bucket-is-not-parked": (
                "        host = super()._parked(tensor)\n",
                "        host = tensor.clone().zero_()\n",
            ),
        },
    },
    "elastic/worker.py": {
        f"{BITS}[--processes=1]": {
            "step-without-gradients": (
                "    waits = first.group.restore()\n",
                "    waits = False\n",
            ),
        },
    },
    "proxy/runs.py": {
        DEVICES: {
            "gpus-are-not-passed-on": ("if placement.gpus else {}", "if False else {}"),
            "own-capability-is-not-reported": (
                "self.gpu.cc if self.gpu and",
                "self.gpu.cc if False and",
            ),
        },
        f"{OTHER}[options0-GPU 0 has 4096 MiB, the pool wants 5120]": {
            "memory-is-not-checked": ("if found.memory < options.memory:", "if False:"),
        },
    },
    "reconciler/act/executor.py": {
        RUNS: {
            "memory-without-limit": (
                'found |= {"gpu": device.gpu, "memory": device.memory}',
                'found["gpu"] = device.gpu',
            ),
        },
    },
    "reconciler/model/runtimes.py": {
        f"{FLEET}::test_a_job_that_has_begun_stays_on_gpus_of_one_compute_capability": {
            "any-newer-gpu": ("return own == seen or seen == (0, 0) if", "return own >= seen if"),
        },
        ONE: {
            "devices-serve-both-runtimes": ("return _of(device) == job.runtime", "return True"),
            "software-gpus-for-elastic-jobs": (
                "if given and device_type not in",
                "if False and device_type not in",
            ),
            "d2-on-gpus-of-a-fleet": ('elif determinism == "D2" and', "elif False and"),
        },
    },
}
