"""A rank that uses the parts of torch.cuda beyond operators, and compares results with the CPU's.

Usage: features.py [NAME …]: only the checks of these names. Each prints its name; the first that
fails ends the run.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.testing import assert_close

CHECKS: list[Callable[[], None]] = []
DEVICE = torch.device("cuda", 0)


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def fails(action: Callable[[], Any], kind: type[Exception] = RuntimeError) -> str:
    """The message of the error that `action` raises."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"{action} raised no {kind.__name__}")


# ---- attention ---------------------------------------------------------------------------------

MATH, FLASH, EFFICIENT = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
)
ATTENTION = [
    (MATH, torch.float32),
    (MATH, torch.float16),
    (FLASH, torch.float16),
    (FLASH, torch.bfloat16),
    (EFFICIENT, torch.float32),
    (EFFICIENT, torch.float16),
    (EFFICIENT, torch.bfloat16),
]


def attend(inputs: list[Tensor], slope: Tensor, **options: Any) -> list[Tensor]:
    """The result, and with its gradient those of query, key and value."""
    inputs = [each.detach().requires_grad_() for each in inputs]
    result = attention(*inputs, **options)
    return [result.detach(), *torch.autograd.grad(result, inputs, slope)]


@check
def each_kind_of_attention() -> None:
    for (backend, kind), causal in itertools.product(ATTENTION, (False, True)):
        inputs = [torch.randn(2, 3, 37, 32).to(kind) for _ in range(3)]
        slope = torch.randn(2, 3, 37, 32).to(kind)
        with sdpa_kernel(MATH):
            exact = attend([each.double() for each in inputs], slope.double(), is_causal=causal)
        with sdpa_kernel(backend):
            inputs = [each.to(DEVICE) for each in inputs]
            found = attend(inputs, slope.to(DEVICE), is_causal=causal)
        near = 4 * torch.finfo(kind).eps
        for mine, right in zip(found, exact, strict=True):
            assert_close(mine.cpu().double(), right, rtol=near, atol=4 * near)


@check
def attention_with_a_mask_and_dropout() -> None:
    inputs = [torch.randn(2, 3, 16, 32) for _ in range(3)]
    slope, mask = torch.randn(2, 3, 16, 32), torch.randn(2, 1, 16, 16)
    with sdpa_kernel(MATH):
        exact = attend(inputs, slope, attn_mask=mask)
    on_device = [each.to(DEVICE) for each in inputs]
    with sdpa_kernel(EFFICIENT):
        found = attend(on_device, slope.to(DEVICE), attn_mask=mask.to(DEVICE))
    for mine, right in zip(found, exact, strict=True):
        assert_close(mine.cpu(), right, rtol=1e-4, atol=1e-5)
    for backend, kind in ((EFFICIENT, torch.float32), (FLASH, torch.float16)):
        inputs = [each.to(kind) for each in on_device]
        with sdpa_kernel(backend):
            runs = []
            for seed in (1, 1, 2):
                torch.manual_seed(seed)
                runs.append(attend(inputs, slope.to(DEVICE, kind), dropout_p=0.25))
        assert all(map(torch.equal, runs[0], runs[1])), "the same seed, another result"
        assert not torch.equal(runs[0][0], runs[2][0]), "another seed, the same result"


@check
def a_transformer_layer() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    x = torch.randn(2, 10, 32)
    for module in (layer.train(), layer.eval()):
        module.dropout.p = module.dropout1.p = module.dropout2.p = module.self_attn.dropout = 0.0
        with torch.no_grad():  # in inference a fused kernel does the whole layer
            assert_close(copy.deepcopy(module).to(DEVICE)(x.to(DEVICE)).cpu(), module(x))


# ---- optimizers --------------------------------------------------------------------------------

OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any], str]] = [
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "foreach fused"),
    (torch.optim.Adam, {"amsgrad": True}, "foreach fused capturable"),
    (torch.optim.AdamW, {}, "foreach fused capturable"),
    (torch.optim.Adagrad, {}, "foreach"),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}, "foreach capturable"),
    (torch.optim.NAdam, {}, "foreach capturable"),
    (torch.optim.RAdam, {}, "foreach capturable"),
    (torch.optim.Adamax, {}, "foreach capturable"),
    (torch.optim.ASGD, {}, "foreach capturable"),
    (torch.optim.Rprop, {}, "foreach capturable"),
    (torch.optim.Adadelta, {}, "foreach capturable"),
    (torch.optim.Adafactor, {}, "foreach"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(
    device: torch.device | str, make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
) -> list[Tensor]:
    """The parameters of a network after three steps."""
    model, x = network().to(device), torch.linspace(-1, 1, 30, device=device).view(5, 6)
    optimizer = make(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return [each.detach().cpu() for each in model.parameters()]


@check
def optimizers_in_each_implementation() -> None:
    for kind, options, switches in OPTIMIZERS:
        exact = trained("cpu", lambda p, k=kind, o=options: k(p, lr=0.01, foreach=False, **o))
        for switch in ("loop", *switches.split()):
            more = {"foreach": False} if switch == "loop" else {switch: True}
            found = trained(DEVICE, lambda p, k=kind, o=options | more: k(p, lr=0.01, **o))
            for mine, right in zip(found, exact, strict=True):
                assert_close(mine, right, rtol=1e-4, atol=1e-5, msg=f"{kind.__name__} {switch}")
    exact, found = (
        trained(device, lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe"))
        for device in ("cpu", DEVICE)
    )
    for mine, right in zip(found, exact, strict=True):
        assert_close(mine, right, rtol=1e-2, atol=1e-3)


@check
def gradients_are_clipped_and_averaged() -> None:
    model, x = network().to(DEVICE), torch.ones(5, 6, device=DEVICE)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    model(x).square().sum().mul(100).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert float(norm) > 1.0
    total = torch.stack([each.grad.square().sum() for each in model.parameters()]).sum()
    assert_close(total.sqrt().item(), 1.0, rtol=1e-4, atol=0)
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    assert max(float(each.grad.abs().max()) for each in model.parameters()) <= 0.01
    before = [each.detach().clone() for each in model.parameters()]
    with torch.no_grad():
        for each in model.parameters():
            each.add_(2.0)
    average.update_parameters(model)
    average.update_parameters(model)
    for mine, old, new in zip(average.parameters(), before, model.parameters(), strict=True):
        assert_close(mine, new.detach())
        assert_close(new.detach(), old + 2.0)


# ---- mixed precision ---------------------------------------------------------------------------


@check
def mixed_precision_skips_steps_that_overflow() -> None:
    for fused in (False, True):
        model, x = network().to(DEVICE), torch.linspace(-1, 1, 30, device=DEVICE).view(5, 6)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=fused)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, growth_interval=2)
        scales = []
        for step in range(5):
            optimizer.zero_grad()
            before = [each.detach().clone() for each in model.parameters()]
            with torch.autocast("cuda", torch.float16):
                result = model(x)
                assert result.dtype == torch.float16
                loss = result.float().square().mean() * (float("inf") if step == 2 else 1.0)
            scaler.scale(loss).backward()
            if step == 1:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            same = all(map(torch.equal, before, [each.detach() for each in model.parameters()]))
            assert same == (step == 2), f"step {step}"
            scales.append(scaler.get_scale())
        assert scales == [2.0**8, 2.0**9, 2.0**8, 2.0**8, 2.0**9], scales


@check
def autocast_in_bfloat16_and_its_cache() -> None:
    model, x = network().to(DEVICE), torch.linspace(-1, 1, 30, device=DEVICE).view(5, 6)
    exact = model(x)
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        found = model(x)
        with torch.autocast("cuda", enabled=False):
            assert model(x).dtype == torch.float32
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), exact, rtol=2e-2, atol=2e-2)


# ---- graphs ------------------------------------------------------------------------------------


@check
def graphs_replay_a_training_step() -> None:
    def steps(graphed: bool) -> list[Tensor]:
        model = network().to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, capturable=True)
        x = torch.zeros(5, 6, device=DEVICE)

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        if graphed:
            with torch.cuda.graph(graph):
                loss = step()
        losses = []
        for seed in range(3):
            x.copy_(torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)))
            if graphed:
                graph.replay()
            else:
                loss = step()
            losses.append(loss.detach().clone())
        return [*losses, *(each.detach() for each in model.parameters())]

    for mine, right in zip(steps(True), steps(False), strict=True):
        assert torch.equal(mine, right)


@check
def graphs_draw_new_random_numbers() -> None:
    x = torch.ones(64, device=DEVICE)

    def drawn(graphed: bool) -> list[Tensor]:
        torch.manual_seed(7)
        graph, results = torch.cuda.CUDAGraph(), []
        if graphed:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                y = nn.functional.dropout(x, 0.5)
        for _ in range(3):
            if graphed:
                graph.replay()
            else:
                y = nn.functional.dropout(x, 0.5)
            results.append(y.clone())
        return results

    nn.functional.dropout(x, 0.5)
    mine, right = drawn(True), drawn(False)
    assert all(map(torch.equal, mine, right))
    assert not torch.equal(mine[0], mine[1])


@check
def graphed_callables_train() -> None:
    x = torch.randn(5, 6, device=DEVICE)
    plain = network().to(DEVICE)
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(plain), (torch.randn_like(x),))
    for model in (plain, graphed):
        model(x).square().mean().backward()
    for mine, right in zip(graphed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, right.grad)


@check
def graphs_share_a_pool() -> None:
    x = torch.arange(8.0, device=DEVICE)
    pool = torch.cuda.graph_pool_handle()
    graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
    with torch.cuda.graph(graphs[0], pool=pool):
        y = x * 2
    with torch.cuda.graph(graphs[1], pool=pool):
        z = y + 1
    x.fill_(5.0)
    for graph in graphs:
        graph.replay()
    assert z.tolist() == [11.0] * 8
    del y
    graphs[1].reset()
    assert (x + 1).tolist() == [6.0] * 8


# ---- streams and events ------------------------------------------------------------------------


@check
def streams_wait_for_each_other() -> None:
    low, high = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert (low.priority, high.priority) == (0, -1)
    assert low != high and low.query() not in (None,)
    x = torch.arange(1000.0, device=DEVICE)
    for stream in (low, high):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() == stream
            y = x * 3
            y.record_stream(stream)
        done = stream.record_event()
        torch.cuda.current_stream().wait_event(done)
        x = y + 1
        del y
    high.synchronize()
    assert high.query()
    assert torch.equal(x.cpu(), torch.arange(1000.0) * 9 + 4)
    outside = torch.cuda.ExternalStream(low.cuda_stream)
    with torch.cuda.stream(outside):
        assert (torch.ones(3, device=DEVICE) * 2).tolist() == [2.0] * 3


@check
def events_measure_time() -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    assert first.query()  # never recorded
    first.record()
    torch.ones(100, device=DEVICE).sum()
    last.record()
    last.synchronize()
    assert last.query() and first.elapsed_time(last) >= 0.0
    plain = torch.cuda.Event()
    plain.record()
    fails(lambda: plain.elapsed_time(last))
    torch.cuda._sleep(1000)
    torch.cuda.current_stream().synchronize()


@check
def pinned_memory_is_copied_in_order() -> None:
    host = torch.arange(5000.0).pin_memory()
    assert host.is_pinned() and not torch.arange(3.0).is_pinned()
    device = host.to(DEVICE, non_blocking=True)
    back = torch.empty(5000, pin_memory=True)
    back.copy_(device * 2, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, torch.arange(5000.0) * 2)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for value in range(20):  # each buffer is reused once its copy is over
            device.copy_(torch.full((5000,), float(value)).pin_memory(), non_blocking=True)
    stream.synchronize()
    assert device.tolist() == [19.0] * 5000
    shared = torch.empty(100)
    torch.cuda.cudart().cudaHostRegister(shared.data_ptr(), shared.numel() * 4, 0)
    assert shared.is_pinned()
    torch.cuda.cudart().cudaHostUnregister(shared.data_ptr())


# ---- memory ------------------------------------------------------------------------------------


@check
def memory_is_counted() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.memory_allocated() - before == 1 << 20
    y = torch.empty(3 << 20, dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del y
    assert torch.cuda.memory_allocated() - before == 1 << 20
    assert torch.cuda.max_memory_allocated() - before == 4 << 20
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    # PyTorch's own: cudaMallocAsync, which is the default in a rank, has neither
    assert "cudaMallocAsync" in fails(torch.cuda.memory._record_memory_history)
    assert "cudaMallocAsync" in fails(torch.cuda.memory_snapshot)
    assert "allocated" in torch.cuda.memory_summary().lower()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total == torch.cuda.get_device_properties(0).total_memory
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > free
    assert torch.cuda.memory_allocated() == before


@check
def too_much_memory_is_an_error_and_no_more() -> None:
    total = torch.cuda.mem_get_info()[1]
    fails(lambda: torch.empty(total, device=DEVICE), torch.cuda.OutOfMemoryError)
    torch.cuda.set_per_process_memory_fraction(0.5)
    fails(
        lambda: torch.empty(total * 3 // 4, dtype=torch.uint8, device=DEVICE),
        torch.cuda.OutOfMemoryError,
    )
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.ones(3, device=DEVICE).tolist() == [1.0] * 3
    raw = torch.cuda.caching_allocator_alloc(4096)
    torch.cuda.caching_allocator_delete(raw)


# ---- generators --------------------------------------------------------------------------------


@check
def generators_repeat_what_they_drew() -> None:
    torch.cuda.manual_seed_all(5)
    assert torch.cuda.initial_seed() == 5
    state = torch.cuda.get_rng_state()
    first = torch.randn(100, device=DEVICE)
    with torch.random.fork_rng(devices=[0]):
        torch.randn(1000, device=DEVICE)
    second = torch.randn(100, device=DEVICE)
    assert not torch.equal(first, second)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.randn(100, device=DEVICE), first)
    assert torch.equal(torch.randn(100, device=DEVICE), second)
    own = torch.Generator(DEVICE)
    own.manual_seed(5)
    assert torch.equal(torch.randn(100, device=DEVICE, generator=own), first)
    moved = own.get_offset()
    assert moved > 0 and moved % 4 == 0, moved
    copied = own.clone_state()
    assert torch.equal(
        torch.rand(10, device=DEVICE, generator=own),
        torch.rand(10, device=DEVICE, generator=copied),
    )
    own.set_offset(0)
    assert torch.equal(torch.randn(100, device=DEVICE, generator=own), first)


@check
def random_numbers_are_philox() -> None:
    """The first numbers of seed 42, computed here from Philox 4x32-10: thread i has subsequence
    i."""
    torch.manual_seed(42)
    found = torch.rand(256, device=DEVICE).cpu()
    expected = [philox(42, thread)[0] * 2.0**-32 + 2.0**-33 for thread in range(256)]
    # torch turns curand's (0, 1] into [0, 1)
    assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def philox(key: int, subsequence: int) -> list[int]:
    word, keys = 0xFFFFFFFF, [key & 0xFFFFFFFF, key >> 32]
    counter = [0, 0, subsequence & word, subsequence >> 32]
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (b >> 32) ^ counter[1] ^ keys[0],
            b & word,
            (a >> 32) ^ counter[3] ^ keys[1],
            a & word,
        ]
        keys = [(keys[0] + 0x9E3779B9) & word, (keys[1] + 0xBB67AE85) & word]
    return counter


# ---- the device --------------------------------------------------------------------------------


@check
def the_device_describes_itself() -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    properties = torch.cuda.get_device_properties(DEVICE)
    assert (properties.major, properties.minor) == (9, 0) == torch.cuda.get_device_capability()
    assert properties.name == torch.cuda.get_device_name() and properties.warp_size == 32
    assert properties.multi_processor_count > 0
    assert len(str(properties.uuid)) == 36
    assert torch.cuda.is_bf16_supported()
    assert "sm_90" in torch.cuda.get_arch_list() or "compute_90" in torch.cuda.get_arch_list()
    fails(lambda: torch.cuda.can_device_access_peer(0, 1), AssertionError)
    assert torch.cuda.current_device() == 0
    fails(lambda: torch.cuda.set_device(1))
    assert torch.ones(2, device=DEVICE).tolist() == [1.0, 1.0]
    runtime = torch.cuda.cudart()
    free, total = runtime.cudaMemGetInfo(0)
    assert 0 < free <= total
    assert runtime.cudaGetErrorString(runtime.cudaError.success) == "no error"
    assert torch.cuda.nvtx.range_push("outer") >= 0
    with torch.cuda.nvtx.range("inner"):
        torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_pop()
    torch.cuda.ipc_collect()
    runtime.cudaProfilerStart()
    runtime.cudaProfilerStop()


@check
def synchronisations_are_reported_on_request() -> None:
    torch.cuda.set_sync_debug_mode("error")
    fails(lambda: torch.ones(2, device=DEVICE).sum().item())
    torch.cuda.set_sync_debug_mode("default")
    with torch.autograd.profiler.profile(use_device=None) as profile:
        torch.ones(2, device=DEVICE).sum()
    assert any(each.name == "aten::sum" for each in profile.function_events)


@check
def nested_and_sparse_tensors() -> None:
    rows = [torch.randn(3, 4), torch.randn(5, 4)]
    nested = torch.nested.nested_tensor([each.to(DEVICE) for each in rows], layout=torch.jagged)
    assert_close(nested.sin().unbind()[1].cpu(), rows[1].sin())
    sparse = torch.eye(4).to_sparse().to(DEVICE)
    assert torch.equal((sparse * 2).to_dense().cpu(), torch.eye(4) * 2)


@check
def scripts_and_checkpointing() -> None:
    model, x = network(), torch.randn(5, 6)
    scripted = torch.jit.trace(copy.deepcopy(model).to(DEVICE), x.to(DEVICE))
    for _ in range(3):
        assert_close(scripted(x.to(DEVICE)).cpu(), model(x))
    plain = copy.deepcopy(model).to(DEVICE)
    for use in (True, False):
        y = x.to(DEVICE).requires_grad_()
        if use:
            result = torch.utils.checkpoint.checkpoint(plain, y, use_reentrant=False)
        else:
            result = plain(y)
        result.sum().backward()
    assert_close(y.grad.cpu(), torch.autograd.functional.jacobian(lambda z: model(z).sum(), x))


# ---- other processes ---------------------------------------------------------------------------


@check
def sharing_with_other_processes_is_refused() -> None:
    """Refused by rankfold, and with this allocator by PyTorch."""
    x, event = torch.ones(3, device=DEVICE), torch.cuda.Event(interprocess=True)
    assert "not supported" in fails(event.record)
    assert "cudaMallocAsync" in fails(x.untyped_storage()._share_cuda_)
    assert (x + 1).tolist() == [2.0] * 3


def main() -> None:
    chosen = [each for each in CHECKS if not sys.argv[1:] or each.__name__ in sys.argv[1:]]
    for each in chosen:
        torch.manual_seed(0)
        each()
        print(each.__name__, flush=True)
    print("all checked")


if __name__ == "__main__":
    main()
