"""Which GPUs and types multiply all groups at once, as torch has kernels for them."""

from __future__ import annotations

import pytest
import torch

from specfit_runtime.expert_compute.products import all_at_once

CUDA = torch.device("cuda", 0)
choose = all_at_once.__wrapped__  # not what was answered before


def public(*arguments: object, **keywords: object) -> None: ...


def private(*arguments: object, **keywords: object) -> None: ...


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    def play(capability: tuple[int, int], *, old_torch: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(
            torch.nn.functional, "grouped_mm", None if old_torch else public, raising=False
        )
        monkeypatch.setattr(torch, "_grouped_mm", private, raising=False)

    return play


@pytest.mark.parametrize(
    ("capability", "dtype", "at_once"),
    [
        ((7, 5), torch.bfloat16, False),
        ((8, 0), torch.bfloat16, False),
        ((8, 9), torch.bfloat16, False),
        ((9, 0), torch.bfloat16, True),
        ((10, 0), torch.bfloat16, True),
        ((9, 0), torch.float32, False),
        ((9, 0), torch.float16, False),
        ((9, 0), torch.float64, False),
    ],
)
def test_all_at_once_only_where_there_is_a_kernel(gpu, capability, dtype, at_once) -> None:
    gpu(capability)
    assert choose(CUDA, dtype) is (public if at_once else None)


@pytest.mark.parametrize(("capability", "at_once"), [((8, 0), False), ((9, 0), True)])
def test_torch_before_the_public_name_knew_one_capability(gpu, capability, at_once) -> None:
    gpu(capability, old_torch=True)
    assert choose(CUDA, torch.bfloat16) is (private if at_once else None)
    gpu((10, 0), old_torch=True)
    assert choose(CUDA, torch.bfloat16) is None


def test_never_on_a_cpu() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert choose(torch.device("cpu"), dtype) is None
