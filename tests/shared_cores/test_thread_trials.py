"""Both numbers of threads are tried on a busy machine."""

import pytest
import torch

from minigpt.shared_cores.thread_trials import ThreadTrials


class Machine:
    """A machine with two cores, on which a computation takes `seconds` with one thread and with two."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.now, self.free = seconds, 0.0, 1
        self.counts: list[int] = []  # of the threads of each computation
        self.trials = ThreadTrials(self, lambda: self.now)  # type: ignore[arg-type]

    def thread_count(self, most: int) -> int:
        return min(most, self.free)

    def compute(self, times: int = 1) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            for _ in range(times):
                with self.trials.limited_threads():
                    self.counts.append(torch.get_num_threads())
                    self.now += self.seconds[self.counts[-1]]
                assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize(("seconds", "faster"), [({1: 0.4, 2: 0.25}, 2), ({1: 0.25, 2: 0.4}, 1)])
def test_both_numbers_of_threads_are_tried_and_the_faster_one_is_used(seconds: dict[int, float], faster: int) -> None:
    machine = Machine(seconds)
    machine.compute(4000)
    one, two = (4, 3) if seconds[2] > seconds[1] else (3, 4)  # computations until a second has passed
    assert machine.counts[: one + two] == [1] * one + [2] * two
    slower = sum(machine.seconds[count] for count in machine.counts if count != faster)
    assert 0.02 < slower / machine.now < 0.025
    machine.counts.clear()
    machine.seconds = {1: seconds[2], 2: seconds[1]}  # the other programs changed
    machine.compute(2000)
    assert machine.counts.count(3 - faster) > 1800


def test_a_computation_of_seconds_is_a_trial() -> None:
    machine = Machine({1: 2.5, 2: 2.0})
    machine.compute(12)
    assert machine.counts == [1] + [2] * 11


def test_all_threads_compute_on_a_quiet_machine_and_the_trials_begin_again_after_it() -> None:
    machine = Machine({1: 0.5, 2: 0.25})
    machine.compute(10)
    machine.free = 2
    machine.compute(5)
    assert machine.counts == [1] * 2 + [2] * 13
    machine.free = 1
    machine.compute(7)
    assert machine.counts[15:] == [1] * 2 + [2] * 5


def test_a_computation_that_fails_gives_the_threads_back_and_does_not_count() -> None:
    machine = Machine({1: 0.5, 2: 0.25})
    with pytest.raises(RuntimeError), machine.trials.limited_threads():
        raise RuntimeError
    machine.compute(3)
    assert machine.counts == [1, 1, 2]
