"""Tests of statistics and of the log, without processes."""

import unittest

from ultima import GoneError, SettingError, StepStats, tensorboard
from ultima._stats import Watch, _listeners, publish


def step(number, seconds=0.1, late=None, silent=(), waited=None, missed=None, trimmed=None):
    """Return a step with late ranks and their shares, and ranks that others waited for."""
    late, waited = late or {}, waited or {}
    return StepStats(
        number, seconds, 1, "complete", 5.0, 300, {}, late, list(silent), waited, missed or {}, trimmed or {}
    )


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

    def test_a_silent_rank_is_named_and_ends_the_job_after_the_limit(self):
        watch = Watch(0, 3, 60.0)
        watch.add(step(0), now=0.0)
        late, silent = self.lines(lambda: watch.add(step(1, 5.0, {2: 1.0}, [2]), now=5.0))
        self.assertIn("rank 2 holds the job up since step 1", late)
        self.assertIn("rank 2 has sent nothing since step 1 (", silent)
        self.assertIn(
            ", 5 s ago): every mean lacks its values, and the part that it averages, 1/3 of it; if that lasts, "
            "GoneError ends the job after 60 s and 20 steps (gone_after)",
            silent,
        )
        with self.assertNoLogs("ultima"):
            for number in range(2, 62):
                watch.add(step(number, silent=[2]), now=number + 3.5)
            with self.assertRaises(GoneError) as gone:
                watch.add(step(62, silent=[2]), now=65.5)
            # The operations after that fail, too.
            with self.assertRaises(GoneError):
                watch.add(step(63, silent=[2]), now=66.5)
        self.assertRegex(str(gone.exception), r"^rank 2 has sent nothing since step 1 \(\d\d:\d\d:\d\d, 66 s ago\): ")
        for advice in ("torchrun --max-restarts", "ultima job resize", "gone_after=None"):
            self.assertIn(advice, str(gone.exception))

    def test_pauses_between_operations_are_no_silence(self):
        watch = Watch(0, 3, 60.0)
        self.lines(lambda: watch.add(step(1, 5.0, {2: 1.0}, [2]), now=5.0))
        # Evaluations of half an hour after every step.
        for number in range(2, 21):
            watch.add(step(number, silent=[2]), now=1800.0 * number)
        with self.assertRaises(GoneError):
            watch.add(step(21, silent=[2]), now=1800.0 * 21)

    def test_a_rank_that_returns_is_not_gone(self):
        watch = Watch(0, 3, 60.0)
        for round in range(5):
            at, now = 100 * round, 1000.0 * round
            self.lines(lambda at=at, now=now: watch.add(step(at, 5.0, {2: 1.0}, [2]), now=now))
            for number in range(1, 50):
                watch.add(step(at + number, silent=[2]), now=now + number)
            (line,) = self.lines(lambda at=at, now=now: watch.add(step(at + 50), now=now + 50))
            self.assertIn(f"rank 2 is in time again at step {at + 50}", line)

    def test_without_a_limit_the_job_continues(self):
        watch = Watch(0, 3)
        _, line = self.lines(lambda: watch.add(step(1, 5.0, {2: 1.0}, [2]), now=5.0))
        self.assertIn("with gone_after=None the job continues", line)
        for number in range(2, 1000):
            watch.add(step(number, silent=[2]), now=100.0 * number)

    def test_if_all_others_are_silent_the_network_may_be_the_reason(self):
        watch = Watch(0, 3, 60.0)
        self.lines(lambda: watch.add(step(1, 5.0, {1: 1.0}, [1, 2]), now=5.0))
        for number in range(2, 21):
            watch.add(step(number, 5.0, silent=[1, 2]), now=5.0 * number)
        with self.assertRaisesRegex(GoneError, "all other ranks have been silent for 105 s: check"):
            watch.add(step(21, 5.0, silent=[1, 2]), now=105.0)

    def test_a_late_rank_may_have_another_replica(self):
        watch = Watch(0, 4, advice="; ADVICE")
        self.lines(lambda: watch.add(step(1, 5.0, {2: 1.0}), now=5.0))
        (line,) = self.lines(lambda: watch.add(step(2), now=6.0))
        self.assertRegex(line, "rank 2 is in time again .*; ADVICE$")
        self.lines(lambda: watch.add(step(3, 5.0, {1: 1.0, 2: 1.0, 3: 1.0}), now=11.0))
        (line,) = self.lines(lambda: watch.add(step(4), now=12.0))
        self.assertRegex(line, "step 4: other ranks' packets arrive here in time again; ADVICE$")

    def test_a_rank_of_whose_packets_many_are_lost_is_named(self):
        watch = Watch(0, 4, 60.0)
        with self.assertNoLogs("ultima"):
            for number in range(50):
                watch.add(step(number, missed={2: 5, 1: 1}), now=number)
        # A rank owes 100 packets in a step.
        (line,) = self.lines(lambda: watch.add(step(50, missed={2: 6}, trimmed={2: 6, 1: 1}), now=50))
        self.assertEqual(
            line,
            "steps 1 to 50: 5% of rank 2's packets did not arrive in time; switches removed the payloads of 1 of those "
            "that had passed 1 switches, 6 of those that had passed 2 switches",
        )
        with self.assertNoLogs("ultima"):
            for number in range(51, 76):
                watch.add(step(number), now=number)
        (line,) = self.lines(lambda: [watch.add(step(number), now=number) for number in range(76, 200)])
        self.assertEqual(line, "steps 27 to 76: only 2.4% of rank 2's packets did not arrive in time")

    def test_a_link_that_loses_packets_of_all_ranks_is_named_once(self):
        watch = Watch(1, 4, 60.0)
        lossy = {0: 20, 2: 21, 3: 22}
        (line,) = self.lines(lambda: [watch.add(step(number, missed=lossy), now=number) for number in range(90)])
        self.assertEqual(line, "steps 0 to 49: 20% of every rank's packets to this one did not arrive in time")
        (line,) = self.lines(lambda: [watch.add(step(number), now=number) for number in range(90, 200)])
        self.assertIn("only 2.4% of every rank's packets to this one did", line)

    def test_steps_of_a_late_rank_are_not_lossy_too(self):
        watch = Watch(0, 4, 60.0)
        late = step(0, 5.0, {2: 1.0}, missed={2: 1000})
        late, again = self.lines(lambda: [watch.add(late, now=0), *(watch.add(step(n), now=n) for n in range(1, 99))])
        self.assertIn("rank 2 holds the job up since step 0", late)
        self.assertIn("rank 2 is in time again at step 1", again)

    def test_tensorboard_records_every_step(self):
        scalars = []

        class Writer:
            def add_scalar(self, tag, value, number):
                scalars.append((tag, value, number))

        with self.assertRaisesRegex(SettingError, "writer is None: expected a SummaryWriter"):
            tensorboard(None)
        with self.assertRaisesRegex(SettingError, "expected a SummaryWriter, an object"):
            tensorboard(Writer)
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

    def test_a_writer_that_fails_gets_no_more_steps(self):
        class Full:
            def add_scalar(self, tag, value, number):
                raise OSError("no space left on device")

        tensorboard(Full())
        self.addCleanup(_listeners.clear)
        with self.assertLogs("ultima", "ERROR") as log:
            publish(None, step(1))
            publish(None, step(2))
        self.assertEqual(len(log.records), 1)


if not hasattr(unittest.TestCase, "assertNoLogs"):  # Python 3.9
    import contextlib

    Log.assertNoLogs = lambda self, logger: contextlib.nullcontext()


if __name__ == "__main__":
    unittest.main()
