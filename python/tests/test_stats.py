"""Tests of statistics and of the log, without processes."""

import unittest

from ultima import StepStats, tensorboard
from ultima._stats import Watch, _listeners, publish


def step(number, seconds=0.1, late=None, silent=(), waited=None):
    """Return a step with late ranks and their shares, and ranks that others waited for."""
    return StepStats(number, seconds, 1, "complete", 5.0, 100, {}, late or {}, list(silent), waited or {})


class Log(unittest.TestCase):
    """One line when a rank becomes late, one when it is back."""

    def lines(self, call):
        """Return what `call` logs."""
        with self.assertLogs("ultima") as logs:
            call()
        return [record.getMessage() for record in logs.records]

    def test_a_late_rank_is_named_once_with_step_and_time(self):
        watch = Watch(0, 4)
        for number in range(10):
            watch.add(step(number), now=number * 0.1)
        (line,) = self.lines(lambda: watch.add(step(10, 5.0, {2: 1.0, 1: 0.1}), now=6.0))
        self.assertIn("rank 2 holds the job up since step 10: 100% of its packets", line)
        self.assertIn("took 5 s, 4.9 s more than usual", line)
        with self.assertNoLogs("ultima"):
            watch.add(step(11, 5.0, {2: 0.7}), now=11.0)
        (line,) = self.lines(lambda: watch.add(step(12), now=11.1))
        self.assertIn("rank 2 is in time again at step 12: it was late for 2 steps, 10.1 s", line)

    def test_a_rank_that_is_slow_in_many_steps_is_named_with_its_cost(self):
        watch = Watch(0, 4)
        with self.assertNoLogs("ultima"):
            for number in range(3):
                watch.add(step(number, 0.4, waited={2: 0.3}), now=number)
        (line,) = self.lines(lambda: watch.add(step(3, 0.4, waited={2: 0.3}), now=3.0))
        self.assertIn("rank 2 holds the job up since step 0: its packets arrive last, and have cost 1.2 s in 4", line)
        with self.assertNoLogs("ultima"):
            for number in range(4, 13):
                watch.add(step(number, waited={2: 0.01}), now=number)
        (line,) = self.lines(lambda: watch.add(step(13), now=13.0))
        self.assertIn("rank 2 is as fast as the others again since step 4: it has cost 1.2 s in 4 steps", line)

    def test_rare_waits_name_no_rank(self):
        watch = Watch(0, 4)
        with self.assertNoLogs("ultima"):
            for number in range(300):
                # Each is short beside the time between two steps, or one rank's among many.
                watch.add(step(number, 0.06, waited={2: 0.05, 1: 0.02}), now=number)

    def test_if_all_others_are_late_this_rank_is_to_blame(self):
        watch = Watch(1, 3)
        (line,) = self.lines(lambda: watch.add(step(7, 5.0, {0: 1.0, 2: 0.9}), now=1.0))
        self.assertIn("step 7", line)
        self.assertIn("this rank was late", line)
        with self.assertNoLogs("ultima"):
            watch.add(step(8, 5.0, {0: 0.8, 2: 0.9}), now=6.0)
        again, late = self.lines(lambda: watch.add(step(9, 5.0, {2: 0.9}), now=11.0))
        self.assertIn("step 9: other ranks' packets arrive here in time again", again)
        self.assertIn("rank 2 holds the job up since step 9", late)

    def test_a_rank_that_costs_no_time_does_not_hold_the_job_up(self):
        watch = Watch(2, 3)
        watch.add(step(1, 0.1), now=0.1)
        (line,) = self.lines(lambda: watch.add(step(2, 0.1, {1: 0.5}), now=0.2))
        self.assertIn("step 2 has ended as soon as usual, without 50% of rank 1's packets: this rank was late", line)

    def test_silence_is_measured_while_all_others_are_silent(self):
        watch = Watch(0, 3)
        self.lines(lambda: self.assertEqual(watch.add(step(1, 5.0, {1: 1.0}, [2]), now=5.0), 0))
        self.assertEqual(watch.add(step(2, 5.0, {1: 1.0}, [1, 2]), now=10.0), 0)
        self.assertEqual(watch.add(step(3, 5.0, {1: 1.0}, [1, 2]), now=75.0), 65)
        self.lines(lambda: self.assertEqual(watch.add(step(4), now=76.0), 0))

    def test_tensorboard_records_every_step(self):
        scalars = []

        class Writer:
            def add_scalar(self, tag, value, number):
                scalars.append((tag, value, number))

        first, second = object(), object()
        tensorboard(Writer())
        tensorboard(Writer(), state=second, tag="second")
        self.addCleanup(_listeners.clear)
        publish(first, step(3, 0.25, {1: 0.5}))
        self.assertFalse([tag for tag, _, _ in scalars if tag.startswith("second/")])
        publish(second, step(4, 0.5))
        self.assertIn(("second/seconds", 0.5, 4), scalars)
        self.assertIn(("ultima/seconds", 0.25, 3), scalars)
        self.assertIn(("ultima/late_ranks", 1, 3), scalars)


if not hasattr(unittest.TestCase, "assertNoLogs"):  # Python 3.9
    import contextlib

    Log.assertNoLogs = lambda self, logger: contextlib.nullcontext()


if __name__ == "__main__":
    unittest.main()
