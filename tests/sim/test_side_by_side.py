import logging
import signal
import sys
import threading
import time

import pytest

from espalier.sim import side_by_side
from espalier.sim.side_by_side import FittingThreads, Threads, Took, fitting_count, one_by_one, place_here

KINDS = [one_by_one, Threads(1), Threads(2), Threads(5), FittingThreads(1), FittingThreads(3)]


@pytest.mark.parametrize("runs", KINDS)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_results_come_in_the_order_of_the_calls_whoever_is_ready_first(runs, count):
    def call(i):
        time.sleep(0.002 * (count - i))
        return i

    for _ in range(3):
        assert runs("kind", [lambda i=i: call(i) for i in range(count)]) == list(range(count))


def test_as_many_calls_run_at_a_time_as_there_are_threads_each_in_a_place_of_its_own():
    everybody = threading.Barrier(3, timeout=10)

    def call():
        everybody.wait()
        return place_here(), threading.get_ident()

    places, idents = zip(*Threads(3)("kind", [call] * 3), strict=True)
    assert sorted(places) == [0, 1, 2]
    assert len(set(idents)) == 3
    assert dict(zip(places, idents, strict=True))[0] == threading.get_ident()
    assert place_here() == 0


@pytest.mark.parametrize("kind", [Threads, FittingThreads])
def test_every_other_thread_first_does_what_it_is_to_begin_with(kind):
    begun, everybody = [], threading.Barrier(3, timeout=10)

    def call():
        everybody.wait()
        return threading.get_ident()

    runs = kind(3, lambda: begun.append(threading.get_ident()))
    idents = runs("kind", [call] * 3)
    assert sorted(begun) == sorted(set(idents) - {threading.get_ident()})


def test_no_threads_are_no_number_of_threads():
    with pytest.raises(ValueError, match=r"count is 0: it must be 1 or more"):
        Threads(0)


@pytest.mark.parametrize("place", [0, 1])
def test_what_a_call_raises_ends_all_calls_and_leaves_no_thread(place):
    begun, both = [], threading.Barrier(2, timeout=10)

    def call():
        begun.append(place_here())
        if len(begun) <= 2:
            both.wait()
            if place_here() == place:
                raise GeneratorExit("enough")
            time.sleep(0.1)

    before = threading.active_count()
    with pytest.raises(GeneratorExit, match="enough"):
        Threads(2)("kind", [call] * 50)
    assert threading.active_count() == before
    assert len(begun) < 50


def test_an_interrupt_ends_the_calls_of_all_threads_at_once():
    ended = []

    def call():
        try:
            if place_here() == 0:
                signal.raise_signal(signal.SIGINT)
            while True:
                time.sleep(0.001)
        finally:
            ended.append(place_here())

    before = threading.active_count(), signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            Threads(4)("kind", [call] * 4)
    finally:
        signal.signal(signal.SIGINT, before[1])
    assert time.monotonic() - started < 5
    assert sorted(ended) == [0, 1, 2, 3] or 0 in ended  # the first may interrupt before the others have begun
    assert threading.active_count() == before[0]


def test_an_interrupt_of_whoever_waits_for_a_thread_ends_that_thread():
    begun, ended = threading.Event(), []
    interrupt = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))

    def call():
        if place_here() == 0:
            begun.wait()
            interrupt.start()
            return
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.append(place_here())

    before = threading.active_count(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Threads(2)("kind", [call] * 2)
    finally:
        signal.signal(signal.SIGINT, before[1])
        interrupt.join()
    assert ended == [1]
    assert threading.active_count() == before[0]


@pytest.mark.parametrize(
    ("took", "count"),
    [
        (Took(wall=1.0, at_work=8.0, cpu=7.9), 8),  # nobody waits
        (Took(wall=1.0, at_work=1.1, cpu=1.0), 8),  # one call takes longer than all others: nobody waits
        (Took(wall=1.0, at_work=8.0, cpu=1.1), 1),  # all wait for one
        (Took(wall=1.0, at_work=8.0, cpu=2.5), 4),
        (Took(wall=1.0, at_work=8.0, cpu=5.9), 8),
    ],
)
def test_calls_that_wait_for_each_other_get_fewer_threads(took, count):
    assert fitting_count(8, took) == count


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without Python's lock nobody waits")
def test_it_is_measured_once_for_each_kind_and_said_once(caplog, monkeypatch):
    monkeypatch.setattr(side_by_side, "ENOUGH_SECONDS", 0.02)
    runs = FittingThreads(3)
    seen = []

    def busy():  # in Python alone: one thread at a time
        seen.append(place_here())
        sum(i for i in range(300_000))

    def at_rest():  # a processor that is not at work for it is no gain
        seen.append(place_here())
        time.sleep(0.02)

    with caplog.at_level(logging.INFO, "espalier"):
        for call in (busy, at_rest):
            for _ in range(4):
                runs(call.__name__, [call] * 6)
            seen.clear()
            runs(call.__name__, [call] * 6)
            assert seen == [0] * 6
    assert caplog.messages == ["busy runs in 1 of 3 threads: others would only wait for them"]
