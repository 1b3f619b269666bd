"""Kernels take every row once, whatever threads there are."""
# pyright: basic

import multiprocessing
from pathlib import Path

import pytest
import torch

from bayesify.functional import fwht
from bayesify.native import operators, switch, threads

pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

X = torch.randn(23, 1024, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    monkeypatch.setattr(operators, "THREAD", 1)


def _transformed(monkeypatch, count):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    # new memory may hold the result of the last call
    monkeypatch.setattr(torch, "empty_like", lambda x, **_: torch.full_like(x, torch.nan))
    y = fwht(X)
    monkeypatch.undo()
    return y


def _use(monkeypatch, team):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    monkeypatch.setattr(operators, "THREAD", 1)
    monkeypatch.setattr(threads, "_team", team)


def test_openmp_is_found_where_pytorch_uses_it():
    if not Path("/proc/self/maps").exists():
        pytest.skip("not Linux")
    uses_gomp = "OpenMP" in torch.__config__.parallel_info() and "libgomp" in Path("/proc/self/maps").read_text()
    assert not uses_gomp or threads._team is not None


@pytest.mark.parametrize("count", [2, 3, 8, 40])
@pytest.mark.parametrize("kind", ["team", "pool", "a team of fewer", "a team of none"])
def test_all_rows_are_taken_once(kind, count, monkeypatch):
    one = _transformed(monkeypatch, 1)
    team, calls = threads._team, []
    if kind != "pool" and team is None:
        pytest.skip("PyTorch has no OpenMP library here")

    def fewer(address, record, parts, flags):
        calls.append(parts)
        if kind == "a team of fewer":
            team(address, record, parts - 1, flags)

    _use(monkeypatch, {"team": team, "pool": None}.get(kind, fewer))
    monkeypatch.setattr(threads, "_POOLED", 1)
    assert torch.equal(_transformed(monkeypatch, count), one)
    assert bool(calls) == kind.startswith("a team")


def _in_child(queue):
    torch.set_num_threads(4)
    queue.put(float(fwht(X).double().sum()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_process_computes_on_its_own_thread(monkeypatch):
    total = float(_transformed(monkeypatch, 2).double().sum())  # threads exist before the fork
    _use(monkeypatch, threads._team)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == total
    child.join(timeout=60)
    assert child.exitcode == 0
