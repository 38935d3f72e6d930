//! Third-party clients: PyPI's p4runtime reads a counter while traffic flows; p4runtime-shell and finsy act as
//! controllers; pygnmi reads over gNMI.

mod counter_client;
mod scripted;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ultima_p4::names::counter;
use ultima_tests::counters::{Cell, Count};
use ultima_tests::needs;
use ultima_tests::stage::Target;

use self::counter_client::CounterClient;
use self::scripted::Pushed;

/// The number of different counts that the client reads before the traffic ends.
const READINGS: usize = 20;

fn p4runtime_reads_a_counter_while_traffic_flows(target: &Target) {
    target.star(|mut stage| {
        let job = stage.jobs[0].clone();
        let cell = Cell {
            switch: 0,
            array: counter::DELIVERED,
            index: job.counter,
        };
        let Some(mut client) = CounterClient::start(stage.testbed.grpc()[0], cell) else {
            return;
        };
        assert_eq!(
            client.read(),
            Count::default(),
            "a new job has counted nothing"
        );

        let gather = job.gather(2, b"some sixteen bytes").emit();
        let burst = vec![gather.clone(); 16];
        let enough = AtomicBool::new(false);
        let mut sent = 0;
        let readings = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let _done = SetOnDrop(&enough);
                let mut readings = vec![client.read()];
                while readings.len() < READINGS {
                    let reading = client.read();
                    if readings.last() != Some(&reading) {
                        readings.push(reading);
                    }
                }
                readings
            });
            while !enough.load(Ordering::Relaxed) {
                let arrivals = stage.testbed.exchange(job.host_of(2), &burst);
                sent += burst.len() as u64;
                assert_eq!(
                    arrivals.values().map(Vec::len).sum::<usize>(),
                    3 * burst.len()
                );
            }
            reader.join().expect("the client reads")
        });

        assert!(
            readings.is_sorted_by_key(|count| (count.packets, count.bytes)),
            "{readings:?}"
        );
        let copies = 3 * sent;
        let all = Count {
            packets: copies,
            bytes: copies * gather.len() as u64,
        };
        assert_eq!(client.read(), all);
        assert_eq!(stage.counts().0[&cell], all, "the test's reader agrees");
    });
}

/// Sets a flag when it is dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A program with controller headers and digests.
const CONTROLLER: Pushed = Pushed {
    p4info: include_str!("../../../switch/tests/programs/controller.p4info.txtpb"),
    json: include_bytes!("../../../switch/tests/programs/controller.json"),
};

/// Ultima's program.
fn ultima() -> Pushed<'static> {
    let ultima_p4::Program {
        p4info,
        device_config: json,
    } = ultima_p4::v1model();
    Pushed { p4info, json }
}

#[test]
fn p4runtime_shell_controls_a_switch() {
    if !needs::full_run() {
        return;
    }
    let python = needs::shell_python();
    scripted::run("shell.py", "p4runtime-shell", &python, &CONTROLLER);
    scripted::run("ultima_shell.py", "p4runtime-shell", &python, &ultima());
}

#[test]
fn finsy_controls_a_switch() {
    if !needs::full_run() {
        return;
    }
    let python = needs::finsy_python();
    scripted::run("finsy_client.py", "finsy", &python, &CONTROLLER);
    scripted::run("ultima_finsy.py", "finsy", &python, &ultima());
}

#[test]
fn pygnmi_reads_a_switch() {
    if !needs::full_run() {
        return;
    }
    let python = needs::gnmi_python();
    scripted::run("gnmi.py", "pygnmi", &python, &CONTROLLER);
}

on_both! {
    p4runtime_reads_a_counter_while_traffic_flows;
}
