"""What every store promises, on all of them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
from subprocesses import run_python
from tiny_experts import LAYOUTS, TinyExperts, write_experts

from specfit_runtime.errors import InvalidInputError, StoreError
from specfit_runtime.stores import STORES, ExpertStore, StoreCounters, open_store
from specfit_runtime.stores import ram as ram_module

_NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@dataclass(frozen=True)
class Case:
    """A way to open a store."""

    store: str
    device: str = "cpu"
    direct_io: bool = False
    link_bandwidth: float | None = None

    def open(self, experts: TinyExperts, **options: object) -> ExpertStore:
        try:
            return open_store(
                self.store,
                experts.index,
                device=self.device,
                direct_io=self.direct_io,
                link_bandwidth=self.link_bandwidth,
                **options,  # type: ignore[arg-type]
            )
        except StoreError as error:
            if self.direct_io and "O_DIRECT" in str(error):
                pytest.skip("the file system of the temporary files refuses O_DIRECT")
            raise

    def slots(self, experts: TinyExperts, n: int) -> torch.Tensor:
        return experts.slots(n).to(self.device)


def _cases() -> Iterator[object]:
    for name, kind in STORES.items():
        gpu = (pytest.mark.gpu, _NO_CUDA)
        for direct in (False, True) if kind.takes_direct_io else (False,):
            suffix = "-direct" if direct else ""
            if not kind.needs_cuda:
                yield pytest.param(Case(name, direct_io=direct), id=f"{name}{suffix}")
            yield pytest.param(
                Case(name, "cuda", direct_io=direct), id=f"{name}{suffix}-cuda", marks=gpu
            )
        if not kind.needs_cuda:
            yield pytest.param(Case(name, link_bandwidth=1e9), id=f"{name}-emulated")


@pytest.fixture(params=_cases())
def case(request: pytest.FixtureRequest) -> Case:
    found = request.param
    assert isinstance(found, Case)
    return found


#: Small experts are copied at once and large ones by threads, where that makes a difference.
SIZES = {"small": {}, "large": {"hidden": 260, "inner": 200, "n_experts": 4}}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., TinyExperts]:
    return lambda **options: write_experts(tmp_path, **options)


@pytest.mark.parametrize(
    ("size", "layout", "n_files"),
    [*product(["small"], LAYOUTS, [1, 2]), ("large", "per-expert", 2), ("large", "fused", 1)],
)
def test_every_expert_arrives_bit_for_bit(
    case: Case, make: Callable[..., TinyExperts], size: str, layout: str, n_files: int
) -> None:
    experts = make(layout=layout, n_files=n_files, **SIZES[size])
    n_experts = experts.index.n_experts
    with case.open(experts) as store:
        for layer in range(experts.index.n_layers):
            slots = case.slots(experts, n_experts)
            tickets = [store.fetch(layer, e, slots[e]) for e in range(n_experts)]
            for ticket in tickets:
                ticket.wait()
            for e in range(n_experts):
                assert experts.holds(slots[e], layer, e)
                assert not experts.holds(slots[e], layer, (e + 1) % n_experts)


@pytest.mark.parametrize(
    ("stored", "run", "shift"),
    [
        (torch.bfloat16, torch.float32, 0),
        (torch.bfloat16, torch.float32, 3),
        (torch.float32, torch.bfloat16, 1),
        (torch.float16, torch.bfloat16, 0),
        (torch.float32, torch.float64, 0),
        (torch.float32, torch.float32, 3),
    ],
)
def test_experts_arrive_in_the_run_dtype(
    case: Case, make: Callable[..., TinyExperts], stored: torch.dtype, run: torch.dtype, shift: int
) -> None:
    # The sizes go beyond one block of a conversion; shifted tensors start at odd bytes.
    experts = make(stored=stored, run=run, n_experts=2, hidden=260, inner=200, shift=shift)
    with case.open(experts) as store:
        slots = case.slots(experts, 2)
        for layer, e in product(range(2), range(2)):
            store.fetch(layer, e, slots[e]).wait()
            assert experts.holds(slots[e], layer, e)


def test_only_the_slot_is_written(case: Case, make: Callable[..., TinyExperts]) -> None:
    experts = make()
    with case.open(experts) as store:
        slots = case.slots(experts, 3)
        store.fetch(0, 4, slots[1]).wait()
        assert experts.holds(slots[1], 0, 4)
        assert bool((slots[0] == 1).all())
        assert bool((slots[2] == 1).all())


def test_counters_count_what_moved(case: Case, make: Callable[..., TinyExperts]) -> None:
    experts = make()
    with case.open(experts) as store:
        assert store.counters() == StoreCounters()
        slots = case.slots(experts, 6)
        for e in range(6):
            store.fetch(1, e, slots[e]).wait()
        if case.device == "cuda":
            torch.cuda.synchronize()
        first = store.counters()
        assert (first.fetches, first.failures) == (6, 0)
        # With direct reads moved_bytes is a mean, rounded up.
        assert 0 <= 6 * store.moved_bytes[1] - first.bytes < (6 if case.direct_io else 1)
        assert first.seconds > 0
        store.fetch(1, 0, slots[0]).wait()
        more = store.counters() - first
        assert more.fetches == 1
        assert more.seconds > 0 or case.device == "cuda"


def test_moved_bytes_are_read_only_and_say_what_one_fetch_moves(
    case: Case, make: Callable[..., TinyExperts]
) -> None:
    experts = make(run=torch.float32)
    with case.open(experts) as store:
        assert store.moved_bytes.shape == (2,)
        assert store.moved_bytes.dtype == "int64"
        with pytest.raises(ValueError, match="read-only"):
            store.moved_bytes[0] = 1
        index = experts.index
        if case.store == "disk" and not case.direct_io:
            assert (store.moved_bytes == index.stored_bytes).all()
        elif case.store != "disk":
            assert (store.moved_bytes == index.record_bytes).all()
        else:
            assert (store.moved_bytes % 1 == 0).all()
            assert (store.moved_bytes > index.stored_bytes).all()


def test_several_threads_may_fetch_at_once(case: Case, make: Callable[..., TinyExperts]) -> None:
    experts = make(stored=torch.float32, run=torch.bfloat16, n_experts=8, hidden=64, inner=40)
    wrong: list[tuple[int, int]] = []

    def work(seed: int) -> None:
        random = Random(seed)
        slots = case.slots(experts, 3)
        for _ in range(12):
            wanted = [(random.randrange(2), random.randrange(8)) for _ in range(3)]
            tickets = [store.fetch(*w, slots[i]) for i, w in enumerate(wanted)]
            for i, ticket in enumerate(tickets):
                ticket.wait()
                if not experts.holds(slots[i], *wanted[i]):
                    wrong.append(wanted[i])

    with case.open(experts, io_threads=3) as store, ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
        assert wrong == []
        assert store.counters().fetches == 6 * 12 * 3
        assert store.counters().failures == 0


def test_a_ticket_may_be_waited_for_again_and_dropped(
    case: Case, make: Callable[..., TinyExperts]
) -> None:
    experts = make(**SIZES["large"])
    with case.open(experts) as store:
        slots = case.slots(experts, 2)
        store.fetch(0, 0, slots[1])  # nobody waits for this one
        ticket = store.fetch(0, 1, slots[0])
        ticket.wait()
        ticket.wait()
        if case.device == "cuda":
            torch.cuda.synchronize()
        assert ticket.done()
        assert experts.holds(slots[0], 0, 1)


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_is_not_there_is_refused(
    case: Case, make: Callable[..., TinyExperts], layer: int
) -> None:
    experts = make()
    with case.open(experts) as store, pytest.raises(InvalidInputError, match="layers 0 to 1"):
        store.fetch(layer, 0, case.slots(experts, 1)[0])


@pytest.mark.parametrize("expert", [-1, 6])
def test_an_expert_that_is_not_there_is_refused(
    case: Case, make: Callable[..., TinyExperts], expert: int
) -> None:
    experts = make()
    with case.open(experts) as store, pytest.raises(InvalidInputError, match="experts 0 to 5"):
        store.fetch(0, expert, case.slots(experts, 1)[0])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda slot: slot[:-1],
        lambda slot: slot.view(2, -1),
        lambda slot: slot.float(),
        lambda slot: slot.repeat(2)[::2],
        lambda slot: slot.to("meta"),
    ],
    ids=["short", "2-D", "dtype", "strided", "device"],
)
def test_a_slot_that_does_not_fit_is_refused(
    case: Case,
    make: Callable[..., TinyExperts],
    spoil: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    experts = make()
    with case.open(experts) as store:
        with pytest.raises(InvalidInputError, match="a slot for layer 0 must be contiguous"):
            store.fetch(0, 0, spoil(case.slots(experts, 1)[0]))
        assert store.counters() == StoreCounters()


def test_an_event_to_wait_for_is_refused_on_a_cpu(
    case: Case, make: Callable[..., TinyExperts]
) -> None:
    if case.device != "cpu":
        pytest.skip("it is what CUDA copies wait for")
    experts = make()
    with case.open(experts) as store, pytest.raises(InvalidInputError, match="after must be None"):
        store.fetch(0, 0, experts.slots(1)[0], object())  # type: ignore[arg-type]


@pytest.mark.parametrize("size", SIZES)
def test_a_closed_store_says_so(
    case: Case, make: Callable[..., TinyExperts], size: str
) -> None:
    experts = make(**SIZES[size])
    store = case.open(experts)
    slot = case.slots(experts, 1)[0]
    store.fetch(0, 1, slot).wait()
    store.close()
    store.close()
    with pytest.raises(StoreError, match="the expert store is closed"):
        store.fetch(0, 1, slot)
    assert experts.holds(slot, 0, 1)
    assert store.counters().fetches == 1  # still to be read


def test_a_drained_store_writes_to_no_slot_any_more(
    case: Case, make: Callable[..., TinyExperts]
) -> None:
    experts = make(**SIZES["large"])
    slots = case.slots(experts, 4)
    with case.open(experts, io_threads=3) as store:
        for _ in range(5):
            slots.fill_(1)
            if case.device == "cuda":
                torch.cuda.synchronize()
            for e in range(4):
                store.fetch(1, e, slots[e])  # the tickets are lost
            store.drain()
            assert store.counters().fetches % 4 == 0
            for e in range(4):
                assert experts.holds(slots[e], 1, e)
    store.drain()  # a closed store writes nothing, either


def test_several_threads_may_drain(case: Case, make: Callable[..., TinyExperts]) -> None:
    experts = make()
    slots = case.slots(experts, 4)

    def work(i: int) -> None:
        for _ in range(5):
            store.fetch(0, i, slots[i])
            store.drain()
            assert experts.holds(slots[i], 0, i)

    with case.open(experts, io_threads=2) as store, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_closing_ends_every_fetch_under_way(
    case: Case, make: Callable[..., TinyExperts]
) -> None:
    experts = make(**SIZES["large"])
    store = case.open(experts, io_threads=1)
    slots = case.slots(experts, 4)
    tickets = [store.fetch(0, e, slots[e]) for e in [0, 1, 2, 3]]
    store.close()
    arrived = 0
    for e, ticket in enumerate(tickets):
        try:
            ticket.wait()
        except StoreError as error:
            assert "closed before the fetch began" in str(error)  # noqa: PT017
        else:
            assert experts.holds(slots[e], 0, e)
            arrived += 1
        assert ticket.done() or case.device == "cuda"
    assert store.counters().fetches == arrived


def test_a_failed_fetch_is_told_by_its_ticket_alone(
    case: Case, make: Callable[..., TinyExperts], monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.store == "pinned":
        pytest.skip("its copies are the device's; nothing in a fetch can fail")
    experts = make(**SIZES["large"])
    slots = case.slots(experts, 4)
    with case.open(experts, io_threads=1) as store:
        with monkeypatch.context() as patch:

            def fail(*args: object) -> int:
                raise OSError(5, "Input/output error")

            patch.setattr(os, "preadv", fail)
            patch.setattr(ram_module, "copy_serially", fail)
            if case.device == "cuda":
                patch.setattr(torch.Tensor, "copy_", fail)
            failing = [store.fetch(0, e, slots[e]) for e in range(3)]
            for ticket in failing:
                for _ in range(2):
                    with pytest.raises(StoreError, match="Input/output error"):
                        ticket.wait()
                assert ticket.done()
        store.fetch(0, 3, slots[3]).wait()
        assert experts.holds(slots[3], 0, 3)
        counters = store.counters()
        assert (counters.fetches, counters.failures) == (1, 3)


def test_two_thousand_fetches_leak_nothing(case: Case, make: Callable[..., TinyExperts]) -> None:
    if case.link_bandwidth is not None:
        pytest.skip("the link moves nothing itself")
    experts = make(stored=torch.float32, run=torch.bfloat16, hidden=32, inner=24)
    with case.open(experts) as store:
        slots = case.slots(experts, 6)

        def fetch(rounds: int) -> None:
            for _ in range(rounds):
                for ticket in [store.fetch(0, e, slots[e]) for e in range(5)]:
                    ticket.wait()

        fetch(60)
        gc.collect()
        descriptors, memory, threads = _descriptors(), _resident(), threading.active_count()
        fetch(400)
        gc.collect()
        assert _descriptors() == descriptors
        assert threading.active_count() <= threads
        # 2,000 fetches of 9 KiB: keeping each of them would take 18 MiB.
        assert _resident() - memory < 4 << 20


def test_a_store_that_is_dropped_leaves_nothing(
    case: Case, make: Callable[..., TinyExperts]
) -> None:
    experts = make(**SIZES["large"])
    gc.collect()
    descriptors = _descriptors()
    before = set(threading.enumerate())
    store = case.open(experts)
    slots = case.slots(experts, 4)
    for ticket in [store.fetch(0, e, slots[e]) for e in range(4)]:
        ticket.wait()
    if case.store == "disk":
        assert _descriptors() > descriptors
    gone = weakref.ref(store)
    del store, ticket
    gc.collect()
    assert gone() is None
    assert _descriptors() == descriptors
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "end",
    ["raise KeyboardInterrupt", pytest.param("sys.exit(3)", marks=pytest.mark.slow)],
)
def test_the_interpreter_exits_while_fetches_are_under_way(tmp_path: Path, end: str) -> None:
    write_experts(tmp_path, **SIZES["large"])
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tiny_experts import write_experts
from specfit_runtime.stores import open_store
experts = write_experts(Path("."), hidden=260, inner=200, n_experts=4)
held = []
for name in ("disk", "ram"):
    store = open_store(name, experts.index, link_bandwidth=1e3)
    slots = experts.slots(4)
    held.append((store, slots, [store.fetch(0, e % 4, slots[e % 4]) for e in range(40)]))
{end}
"""
    done = run_python(code, Path(__file__).parents[2], cwd=tmp_path)
    expected = 3 if "exit" in end else -signal.SIGINT
    assert done.returncode == expected, done.stderr
    assert "Exception ignored" not in done.stderr


def test_the_names_of_unknown_stores_are_answered_with_the_known_ones(
    make: Callable[..., TinyExperts],
) -> None:
    for name in ("tape", "", None):
        with pytest.raises(InvalidInputError, match="the stores are disk, ram, pinned"):
            open_store(name, make().index)  # type: ignore[arg-type]


def test_the_registry_says_what_each_store_is() -> None:
    for name in STORES:
        assert STORES.find(name).name == name
        assert STORES.find(name).summary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"io_threads": 0}, "io_threads must be a whole number of at least 1, got 0"),
        ({"io_threads": 1.5}, "io_threads must be a whole number of at least 1, got 1.5"),
        ({"io_threads": True}, "io_threads must be"),
        ({"direct_io": "yes"}, "direct_io must be true or false"),
        ({"link_bandwidth": 0}, "link_bandwidth must be a finite number of bytes per"),
        ({"link_bandwidth": float("inf")}, "link_bandwidth must be a finite number"),
        ({"link_bandwidth": float("nan")}, "link_bandwidth must be a finite number of bytes per"),
        ({"link_bandwidth": "fast"}, "link_bandwidth must be a finite number of bytes per"),
        ({"device": "tpu"}, "device must be 'cpu' or a CUDA device"),
        ({"device": 1.5}, "device must be 'cpu' or a CUDA device"),
        ({"device": "meta"}, "experts can be offloaded from 'cpu' and 'cuda'"),
    ],
)
def test_bad_options_are_refused(
    make: Callable[..., TinyExperts], options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_store("disk", make().index, **options)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("store", STORES)
def test_a_missing_cuda_device_is_said(make: Callable[..., TinyExperts], store: str) -> None:
    with pytest.raises(InvalidInputError, match="torch sees no CUDA device"):
        open_store(store, make().index, device="cuda:0")


@pytest.mark.parametrize("store", [name for name, kind in STORES.items() if kind.needs_cuda])
def test_a_store_for_cuda_refuses_the_cpu(make: Callable[..., TinyExperts], store: str) -> None:
    with pytest.raises(InvalidInputError, match='use store="ram"'):
        open_store(store, make().index, device="cpu")


@pytest.mark.parametrize(
    "store", [name for name, kind in STORES.items() if not kind.takes_direct_io]
)
def test_direct_reads_are_refused_where_nothing_is_read(
    make: Callable[..., TinyExperts], store: str
) -> None:
    with pytest.raises(InvalidInputError, match="direct_io has no meaning"):
        open_store(store, make().index, direct_io=True)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
