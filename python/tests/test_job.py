"""Tests of `ultima.Job`: NumPy arrays, errors, signals and forks. Every rank is a process."""

import json
import signal
import time
import unittest

import launch


class Jobs(unittest.TestCase):
    """Each test starts its own ranks."""

    def test_every_operation(self):
        for ended in launch.run("job_ranks.operations", 3, ULTIMA_STORE="host"):
            report = ended.result()
            self.assertEqual(report["wrong"], [])
            self.assertEqual(report["fork"], 7)
            self.assertEqual(report["closed"][0], "ClosedError")
            classes = {what: error[0] for what, error in report["refused"].items()}
            for what in ("integers", "object", "exact float64", "masked", "masked gather"):
                self.assertEqual(classes.pop(what), "DtypeError", what)
            self.assertEqual(set(classes.values()), {"SettingError"}, classes)
            self.assertIn("expected float16, float32 or float64", report["refused"]["integers"][1])
            self.assertIn("unknown setting 'deadlin'", report["refused"]["setting"][1])
            self.assertIn("rate is 1.5: expected a whole number", report["refused"]["rate's type"][1])
            self.assertIn("rate is 0: expected", report["refused"]["rate"][1])
            self.assertIn("slot_bytes is 6: expected a multiple of 4", report["refused"]["slot"][1])
            for what, words in {
                "masked": "pass array.filled(0)",
                "slow": "rate is 1: expected a whole number of bits per second, 100,000 or more",
                "odd slot": "slot_bytes is 66: expected a multiple of 4",
                "small factor": "deadline_factor is 0.9: expected a multiple of an AllReduce's usual time, 1 to 1000",
                "unlearned": "deadline_factor needs learned times: expected learning=True, or no deadline_factor",
                "small slot": "slot_bytes is 4: expected a multiple of 4, 64 or more",
                "true deadline": "deadline is True: expected a number",
                "no silence": "gone_after is 0: expected seconds, such as 60, or None",
                "rank's type": "rank is '0': expected 0 to 1",
                "negative rank": "rank is -1: expected 0 to 1",
                "an address": "addresses is '127.0.0.1:9': expected a list",
                "wait's type": "seconds is 'x': expected a number",
                "set deadline's type": "seconds is 'x': expected a number",
                "scale's type": "scale is 'x': expected a number",
                "true root": "root is True: expected a rank below 3",
            }.items():
                self.assertIn(words, report["refused"][what][1])
            self.assertEqual(report["refused"]["negative wait"][1], "seconds is -1: expected 0 or more")

    def test_a_deadline_factor_shortens_deadlines(self):
        for ended in launch.run("job_ranks.deadline_factor", 2, ULTIMA_STORE="host"):
            first, *_, last = ended.result()
            self.assertEqual(first, 60.0)
            # Without the factor it would be twice 60 s / 16 at least.
            self.assertLess(last, 7.5)

    def test_arrays_of_different_lengths_are_an_error(self):
        for ended in launch.run("job_ranks.lengths", 2, ULTIMA_STORE="host"):
            bounded, exact, buckets = ended.result()
            same = "all ranks must make the same calls in the same order"
            for expected, (kind, message) in [("Mismatch", bounded), ("Incomplete", exact), ("Mismatch", buckets)]:
                self.assertEqual(kind, f"{expected}Error")
                self.assertIn(same, message)
            self.assertRegex(exact[1], r"is incomplete after 1(\.\d{1,3})?s:")

    def test_lengths_that_need_as_many_packets_are_an_error(self):
        for ended in launch.run("job_ranks.almost_equal_lengths", 2, ULTIMA_STORE="host"):
            for kind, message in ended.result():
                self.assertEqual(kind, "MismatchError")
                self.assertIn("with arrays of the same length", message)

    def test_exact_operations_that_differ_are_an_error(self):
        first, second = (e.result() for e in launch.run("job_ranks.different_calls", 2, ULTIMA_STORE="host"))
        # A broadcast's root has the right result, its own values.
        self.assertEqual([kind for kind, _ in first], [*["MismatchError"] * 2, "none", "none", *["MismatchError"] * 2])
        self.assertEqual([kind for kind, _ in second], ["MismatchError"] * 6)
        self.assertIn("broadcast from rank 1 of float32, 20 bytes: another rank has another root, type", second[0][1])
        self.assertIn("all_gather of int8, 6 bytes: rank 0 has another type or number of bytes", second[5][1])

    def test_a_rank_that_is_gone_ends_the_job_of_all_others(self):
        first, second, _ = launch.run("job_ranks.gone", 3, ULTIMA_STORE="host", SETTINGS='{"gone_after": 0.5}')
        for ended in (first, second):
            report = ended.result()
            self.assertEqual((report["error"][0], report["mean"], report["again"]), ("GoneError", 1000, "GoneError"))
            self.assertIn("rank 2 has sent nothing since step", report["error"][1])
            self.assertIn("rank 2 holds the job up since step", ended.errors)

    def test_a_job_continues_without_a_rank_if_the_user_wants(self):
        first, second, _ = launch.run("job_ranks.gone", 3, ULTIMA_STORE="host", SETTINGS='{"gone_after": null}')
        for ended in (first, second):
            report = ended.result()
            self.assertEqual((report["error"][0], report["silent"]), ("none", [2]))
            missed, lost = report["missed"]
            self.assertEqual(sum(missed.values()), lost)
            self.assertGreater(missed["2"], 0)
            self.assertIn("with gone_after=None the job continues", ended.errors)

    def test_a_rank_that_hears_no_other_ends_without_a_limit_too(self):
        report = launch.run("job_ranks.gone", 2, ULTIMA_STORE="host", SETTINGS='{"gone_after": null}')[0].result()
        self.assertEqual(report["error"][0], "GoneError")
        self.assertIn("no packet came from any of the 1 other ranks", report["error"][1])

    def test_another_number_of_ranks_has_its_variable_in_the_error(self):
        port = launch.free_port()
        env = {"ULTIMA_STORE": "host", "LIMIT": "60"}
        ranks = [launch.start("job_ranks.rendezvous", rank, 2 + rank, port, **env) for rank in range(2)]
        for ended in launch.ends(ranks):
            kind, message = ended.result()
            self.assertEqual(kind, "MismatchError")
            self.assertIn("rank 1 has WORLD_SIZE 3, rank 0 has 2: start all ranks with the same WORLD_SIZE", message)

    def test_a_different_setting_has_its_name_in_python(self):
        for setting, words in [
            ({"wire": "f16"}, "rank 1 has wire f16, rank 0 has f32: start all ranks with the same wire"),
            ({"hadamard": False}, "start all ranks with the same hadamard"),
        ]:
            port = launch.free_port()
            env = {"ULTIMA_STORE": "host"}
            ranks = [
                launch.start("job_ranks.rendezvous", 0, 2, port, **env),
                launch.start("job_ranks.rendezvous", 1, 2, port, SETTINGS=json.dumps(setting), **env),
            ]
            for ended in launch.ends(ranks):
                kind, message = ended.result()
                self.assertEqual(kind, "MismatchError")
                self.assertIn(words, message)

    def test_a_different_seed_is_named_on_every_rank(self):
        port = launch.free_port()
        seeds = ["42", "42", "7"]
        ranks = [
            launch.start("job_ranks.rendezvous", rank, 3, port, ULTIMA_STORE="host", ULTIMA_SEED=seed)
            for rank, seed in enumerate(seeds)
        ]
        for ended in launch.ends(ranks):
            kind, message = ended.result()
            self.assertEqual(kind, "MismatchError")
            self.assertIn("rank 2 has seed 7, rank 0 has 42", message)

    def test_missing_ranks_and_services_are_named(self):
        store = {"ULTIMA_STORE": "host", "LIMIT": "1"}
        late = (
            "rank 1 of 2 did not join within 1s: start them, check their logs, and that they reach the rendezvous, or "
            "allow more time (timeout, ULTIMA_TIMEOUT)"
        )
        controller = {"ULTIMA_CONTROLLER": "127.0.0.1:9", "ULTIMA_JOB": "j", "ULTIMA_HOST": "h", "LIMIT": "1"}
        for expected, words, env in [
            ("RendezvousError", late, store),
            ("RendezvousError", "init_process_group", {"LIMIT": "1"}),
            ("ControllerError", "127.0.0.1:9", controller),
            ("SettingError", "MASTER_PORT", {"MASTER_PORT": "x"}),
            ("SettingError", "this host has lo", {"ULTIMA_INTERFACE": "eth77", **store}),
            ("SettingError", "1 ranks", {"WORLD_SIZE": "1", **store}),
        ]:
            with self.subTest(env):
                alone = launch.start("job_ranks.rendezvous", 0, 2, launch.free_port(), **env)
                kind, message = launch.ends([alone])[0].result()
                self.assertEqual(kind, expected, message)
                self.assertIn(words, message)
                # No names of the Rust API.
                self.assertNotIn("::", message)

    def test_ctrl_c_ends_the_rendezvous(self):
        alone = launch.start("job_ranks.interrupted", 0, 2, launch.free_port(), ULTIMA_STORE="host")
        self.assertEqual(alone.stdout.readline(), "waiting\n")
        alone.send_signal(signal.SIGINT)
        kind, seconds = launch.ends([alone])[0].result()
        self.assertEqual(kind, "KeyboardInterrupt")
        self.assertLess(seconds, 100)

    def ready(self, function, count, **env):
        """Start ranks, and wait until they say that they are ready."""
        port = launch.free_port()
        ranks = [launch.start(function, rank, count, port, ULTIMA_STORE="host", **env) for rank in range(count)]
        for rank in ranks:
            self.addCleanup(rank.kill)
            self.assertEqual(rank.stdout.readline(), "ready\n")
        return ranks

    def test_after_an_interrupt_the_job_ends_soon(self):
        for how in ("wait", "between", "uncaught"):
            with self.subTest(how):
                ranks = self.ready("job_ranks.interrupted_job", 2, HOW=how)
                began = time.monotonic()
                if how == "wait":
                    ranks[0].send_signal(signal.SIGINT)
                ended = launch.ends(ranks[:1])[0]
                # The operation's own limit is 200 s.
                self.assertLess(time.monotonic() - began, 100)
                ranks[1].kill()
                launch.ends(ranks[1:])
                if how == "uncaught":
                    self.assertIn("KeyboardInterrupt", ended.errors)
                else:
                    kind, seconds = ended.result()
                    self.assertEqual(kind, "KeyboardInterrupt")
                    self.assertLess(seconds, 100)

    def test_a_killed_rank_stops_nobody(self):
        ranks = self.ready("job_ranks.killed", 3)
        ranks[2].kill()
        for ended in launch.ends(ranks)[:2]:
            report = ended.result()
            self.assertAlmostEqual(report["before"], 1.0, 3)
            # Two thirds of 0.5, the mean of ranks 0 and 1: what rank 2 reduced is missing, and counts as zero.
            means = [mean for silent, mean in report["after"] if silent == [2]]
            self.assertTrue(any(abs(mean - 1 / 3) < 0.03 for mean in means), report["after"])
            self.assertEqual(report["exact"][0], "IncompleteError")
            self.assertIn("no packet from rank 2", report["exact"][1])


if __name__ == "__main__":
    unittest.main()
