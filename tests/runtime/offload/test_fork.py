"""A process that is forked after a model was loaded can decode with it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from subprocesses import environment
from tiny_drafters import tiny_lm

# A child that would wait for ever is ended by its alarm.
_SCRIPT = """
import os, signal, sys, threading, torch
from specfit_runtime import SpecFit, load_offloaded, offload_of
folder, drafter, store, link = sys.argv[1:]
torch.set_num_threads(2)
torch.softmax(torch.randn(400, 400), -1) @ torch.randn(400, 400)  # OpenMP has threads from now on
options = dict(store=store, link_bandwidth=float(link) or None, dtype="float32")
model = load_offloaded(folder, expert_cache=0.25, **options)
prompt = torch.arange(3, 12)[None]
spec = SpecFit(f"lm:{drafter}", policy="eagle-10")
def decode(model=model):
    return [
        model.generate(prompt, max_new_tokens=6, do_sample=False, **extra).tolist()
        for extra in ({}, {"custom_generate": spec})
    ]
def in_child(action):
    pid = os.fork()
    if not pid:
        signal.alarm(40)
        try:
            torch.randn(400, 400) @ torch.randn(400, 400)
            os._exit(0 if action() else 3)
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(4)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, (os.WIFSIGNALED(status), status)
# Before the first use, and after it.
in_child(lambda: decode()[0] == decode()[1])
torch.set_num_threads(1)
want = decode()
assert want[0] == want[1]
in_child(lambda: decode() == want)
# While fetches are under way.
cache = offload_of(model).cache
cache.clear()
cache.prefetch(0, [0, 1]), cache.prefetch(1, [2, 3])
in_child(lambda: decode() == want and offload_of(model).close() is None)
assert decode() == want
# While another thread decodes, holding now this and now that lock.
other = load_offloaded(folder, expert_cache=0.25, **options)
stop = threading.Event()
def go_on():
    while not stop.is_set():
        other.generate(prompt, max_new_tokens=3, do_sample=False)
thread = threading.Thread(target=go_on)
thread.start()
for _ in range(2):
    in_child(lambda: decode(other)[0] == want[0])
stop.set()
thread.join()
# A child that only ends leaves the parent's files and threads alone.
in_child(lambda: (offload_of(other).close(), True)[1])
assert decode(other) == want
print("done")
"""


@pytest.mark.parametrize(
    ("store", "link"),
    [
        ("disk", 0),
        pytest.param("ram", 0, marks=pytest.mark.slow),
        pytest.param("disk", 5e7, marks=pytest.mark.slow),
    ],
)
def test_a_forked_child_decodes(tiny_folder, tmp_path, store, link) -> None:
    drafter = tiny_lm(tmp_path / "lm", 160)
    arguments = [str(tiny_folder("qwen3_moe")), str(drafter), store, str(link)]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments],
        capture_output=True, text=True, env=environment(), timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["done"]
