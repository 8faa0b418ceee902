"""The kernel: time goes forward, ties keep their order, and every run is the same bit for bit."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from ringloom.simulator.engines.events import Clock

times = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0]) | st.floats(0, 9), max_size=30)


@given(times)
def test_actions_run_in_time_and_ties_in_the_order_asked_for(wanted: list[float]) -> None:
    clock, seen = Clock(), list[tuple[float, int]]()
    for number, time in enumerate(wanted):
        clock.at(time, lambda n: seen.append((clock.now, n)), number)
    assert clock.run() == len(wanted)
    assert seen == sorted(zip(wanted, range(len(wanted)), strict=True))


def test_an_action_may_ask_for_more_at_the_same_time_and_comes_after_what_is_there() -> None:
    clock, seen = Clock(), list[str]()

    def first(name: str) -> None:
        seen.append(name)
        clock.at(clock.now, seen.append, "third")

    clock.at(1.0, first, "first")
    clock.at(1.0, seen.append, "second")
    clock.run()
    assert seen == ["first", "second", "third"]


def test_time_passes_for_a_process_only_where_it_yields() -> None:
    clock, seen = Clock(), list[float]()

    def life() -> Iterator[float]:
        for pause in (1.0, 2.0, 4.0):
            seen.append(clock.now)
            yield clock.now + pause

    def resume(process: Iterator[float]) -> None:
        for until in process:
            return clock.at(until, resume, process)
        return None

    clock.at(0.0, resume, life())
    clock.run()
    assert (seen, clock.now) == ([0.0, 1.0, 3.0], 7.0)
