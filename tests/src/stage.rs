//! The setup of most tests: a testbed with a running controller and installed jobs.

use std::path::PathBuf;
use std::time::Duration;

use crate::controller::{ACROSS, Controller, LEFT, RIGHT};
use crate::counters::{CounterReader, Counts};
use crate::fabric::{Fabric, device_id};
use crate::job::Job;
use crate::netns;
use crate::operator::Operator;
use crate::scenario::Scene;
use crate::testbed::Testbed;

/// A kind of switch and of links.
#[derive(Clone, Debug)]
pub enum Target {
    /// The embedded switch on Unix sockets.
    Sockets,
    /// The embedded switch on interfaces, see [`crate::needs::interfaces`].
    Interfaces,
    /// As `Interfaces`; the forwarding thread polls through pauses of this length.
    Polling(Duration),
    /// BMv2 with this path, on interfaces.
    Bmv2(PathBuf),
}

/// A testbed with a controller and jobs.
pub struct Stage {
    /// The jobs, in the order in which they were created.
    pub jobs: Vec<Job>,
    /// Reads the switches' counters.
    pub counters: CounterReader,
    /// The controller.
    pub controller: Controller,
    /// Switches and links. The last field, so that it is dropped last.
    pub testbed: Testbed,
}

impl Target {
    /// Runs `test` with one switch, four hosts and two jobs, as [`Scene`] has them.
    pub fn star<T: Send>(&self, test: impl FnOnce(Stage) -> T + Send) -> T {
        self.run(Fabric::star(), &[LEFT, RIGHT], test)
    }

    /// Runs `test` with two switches and a job across them.
    pub fn pair<T: Send>(&self, test: impl FnOnce(Stage) -> T + Send) -> T {
        self.run(Fabric::pair(), &[ACROSS], test)
    }

    /// Runs `test` with a fabric and jobs.
    pub fn run<T: Send>(
        &self,
        fabric: Fabric,
        jobs: &[&str],
        test: impl FnOnce(Stage) -> T + Send,
    ) -> T {
        self.bare(fabric, |testbed| test(Stage::new(testbed, jobs)))
    }

    /// Runs `test` with a fabric without a controller, whose switches have no program.
    pub fn bare<T: Send>(&self, fabric: Fabric, test: impl FnOnce(Testbed) -> T + Send) -> T {
        match self {
            Target::Sockets => test(Testbed::of_embedded_on_sockets(fabric)),
            Target::Interfaces => {
                netns::within(|| test(Testbed::of_embedded_on_interfaces(fabric)))
            }
            Target::Polling(poll) => {
                netns::within(|| test(Testbed::of_polling_on_interfaces(fabric, *poll)))
            }
            Target::Bmv2(program) => netns::within(|| test(Testbed::of_bmv2(fabric, program))),
        }
    }
}

impl Stage {
    fn new(testbed: Testbed, jobs: &[&str]) -> Self {
        let controller = Controller::start(&testbed);
        let jobs = jobs
            .iter()
            .map(|yaml| controller.create(&testbed, yaml))
            .collect();
        let servers = testbed.grpc();
        let switches = servers
            .into_iter()
            .enumerate()
            .map(|(at, grpc)| (grpc, device_id(at)));
        let counters = testbed.runtime.block_on(CounterReader::connect(switches));
        Self {
            jobs,
            counters: counters.expect("the switches serve P4Runtime"),
            controller,
            testbed,
        }
    }

    /// All counters of all switches.
    ///
    /// # Panics
    /// If a switch does not answer.
    pub fn counts(&mut self) -> Counts {
        let read = self.testbed.runtime.block_on(self.counters.read());
        read.expect("a read needs no primary")
    }

    /// All counters of all switches but those by source.
    ///
    /// # Panics
    /// If a switch does not answer.
    pub fn counts_without_sources(&mut self) -> Counts {
        let read = self.counters.read_without_sources();
        let read = self.testbed.runtime.block_on(read);
        read.expect("a read needs no primary")
    }

    /// Makes an operator the primary of a switch during `work`. Returns when the controller is the primary again.
    ///
    /// # Panics
    /// If the switch rejects the operator, or the controller does not detect the changes.
    pub fn operate<T>(&self, switch: usize, work: impl AsyncFnOnce(&Operator) -> T) -> T {
        let Self {
            controller,
            testbed,
            ..
        } = self;
        let grpc = testbed.grpc()[switch];
        let operator = testbed.runtime.block_on(Operator::at(switch, grpc));
        controller.wait_until_connected(testbed, switch, false);
        let result = testbed.runtime.block_on(work(&operator));
        drop(operator);
        controller.wait_until_connected(testbed, switch, true);
        result
    }

    /// The fabric with one switch and the two jobs on it.
    ///
    /// # Panics
    /// On another fabric.
    pub fn scene(&self) -> Scene<'_> {
        let [left, right] = &self.jobs[..] else {
            panic!("a fabric with two jobs")
        };
        Scene {
            fabric: &self.testbed.fabric,
            left,
            right,
        }
    }
}
