"""Sessions in unusual places: generators, coroutines, forks, changing folders, compiled code."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from session_rows import row_of

import flagprism_torch
import flagprism_torch.backends.cpu as cpu
from flagprism_torch.errors import NestedSessionError
from flagprism_torch.session import Session


@pytest.fixture(scope="module", autouse=True)
def backend() -> Iterator[None]:
    assert cpu.register("test_attacks_session")
    yield
    cpu.unregister("test_attacks_session")


@triton.jit
def double(x, o, n, B: tl.constexpr):
    i = tl.arange(0, B)
    m = i < n
    a = tl.load(x + i, m)
    tl.store(o + i, a * 2.0, m)


def launch() -> torch.Tensor:
    out = torch.zeros(16)
    double[(1,)](torch.ones(16), out, 16, B=16)
    return out


def quiet(**options: Any) -> Session:
    return flagprism_torch.debug(logdir=False, **options)


def launches(session: Session) -> int:
    table = session.table()
    return row_of(table, "a").executions if len(table) else 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_ends_the_session(error: type[BaseException]):
    session = quiet()
    with pytest.raises(error), session:
        launch()
        raise error
    assert launches(session) == 1
    launch()
    assert launches(session) == 1


def test_a_generator_holds_the_block_until_it_is_closed():
    def steps() -> Iterator[Session]:
        with quiet() as session:
            launch()
            yield session

    generator = steps()
    session = next(generator)
    launch()  # the block is process-wide
    with pytest.raises(NestedSessionError):
        quiet().__enter__()
    del generator
    gc.collect()
    launch()
    assert launches(session) == 2


def test_a_coroutine_holds_the_block():
    async def work() -> Session:
        with quiet() as session:
            await asyncio.sleep(0)
            launch()
        return session

    assert launches(asyncio.run(work())) == 1


def test_an_interrupt_in_a_launch_hook_leaves_no_record():
    from triton import knobs

    def interrupt(metadata: Any) -> None:
        raise KeyboardInterrupt

    hooks = knobs.runtime.launch_enter_hook
    session = quiet()
    hooks.add(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), session:
            launch()
    finally:
        hooks.remove(interrupt)
    assert launches(session) == 0
    with quiet() as session:
        launch()
    assert launches(session) == 1
    assert knobs.runtime.launch_enter_hook is hooks


def _child(results: Any) -> None:
    results.put(launch().sum().item())


def test_a_forked_process_launches_and_the_parent_does_not_count_it(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    with flagprism_torch.debug(logdir=tmp_path) as session:
        launch()
        results = context.SimpleQueue()
        child = context.Process(target=_child, args=(results,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert results.get() == 32.0
        launch()
    assert launches(session) == 2


def test_a_relative_logdir_stays_where_it_was_when_entering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with flagprism_torch.debug(logdir="logs") as session:
        launch()
        monkeypatch.chdir("elsewhere")
        session.step()
        launch()
    assert session.logdir == tmp_path / "logs"
    assert len(list((tmp_path / "logs").glob("*tfevents*"))) == 1
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("under", ["file", "file/logs"])
def test_a_logdir_that_cannot_be_written_is_refused_on_entering(tmp_path: Path, under: str):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(OSError, match="cannot be written to logdir"),
        flagprism_torch.debug(logdir=tmp_path / under),
    ):
        pytest.fail("entered")
    with quiet() as session:  # nothing was left active
        launch()
    assert launches(session) == 1


def test_random_states_are_untouched(tmp_path: Path):
    def states() -> tuple[Any, ...]:
        return (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
        )

    before = states()
    with flagprism_torch.debug(logdir=tmp_path) as session:
        launch()
        session.step()
    session.report()
    assert states() == before


def test_results_can_be_read_while_threads_launch():
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                assert (launch() == 2).all()
        except BaseException as error:
            errors.append(error)

    with quiet() as session:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            session.table()
            session.report()
            session.step()
        for thread in threads:
            thread.join()
    assert not errors
    assert launches(session) == session.coverage.to_dict()["launches"] == 120


@pytest.mark.parametrize("wrong", [1.0, "0", True, np.int64(0)])
def test_table_refuses_a_step_that_is_no_int(wrong: Any):
    with quiet() as session:
        launch()
    with pytest.raises(TypeError, match=r"step=.*allowed: an int or None"):
        session.table(wrong)


@pytest.mark.parametrize("wrong", [-1, 1, 99])
def test_table_refuses_a_step_that_is_not_kept(wrong: int):
    with quiet() as session:
        launch()
    with pytest.raises(ValueError, match=f"step={wrong} is not kept; allowed: 0 "):
        session.table(wrong)
