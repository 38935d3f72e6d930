//! The target of a test's switches: v1model, or a Tofino as `ultima_emulation` has it. Fabrics are written for v1model.
//!
//! Tests of the target contract name it and run on both ([`on_each_target`]). All others run on the target of the run
//! ([`Target::of_run`]).

use std::sync::Arc;

use ultima_controller::server::Config;
use ultima_emulation::Tofino;
use ultima_p4runtime::tofino::{Chip, METER, TOFINO, TofinoProgram};
use ultima_p4runtime::v1::{Entity, MeterConfig, Update};
use ultima_planner::fabric::{self, Fabric};
use ultima_planner::program::Program;
use ultima_planner::target::ProgramForm;
use ultima_switch::target as switch;

use crate::testbed::TIMERS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    V1model,
    Tofino,
}

/// Makes each `async fn(Target)` a test for every target, such as `limits::on_tofino`.
macro_rules! on_each_target {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn on_v1model() {
                super::$name($crate::target::Target::V1model).await;
            }

            #[tokio::test]
            async fn on_tofino() {
                super::$name($crate::target::Target::Tofino).await;
            }
        }
    )+};
}
pub(crate) use on_each_target;

impl Target {
    /// The target of tests that do not name one: v1model, or `ULTIMA_TARGET`, by which `.ci/full` runs them on a Tofino, too.
    pub fn of_run() -> Self {
        match std::env::var("ULTIMA_TARGET").as_deref() {
            Err(_) | Ok("v1model") => Target::V1model,
            Ok("tofino") => Target::Tofino,
            Ok(other) => panic!("ULTIMA_TARGET={other}: want v1model or tofino"),
        }
    }

    /// The emulated chip; none on v1model.
    pub fn chip(self) -> Option<&'static Chip> {
        match self {
            Target::V1model => None,
            Target::Tofino => Some(&TOFINO),
        }
    }

    /// The emulation that an embedded switch is started with.
    pub fn emulation(self) -> Option<Arc<dyn switch::Target>> {
        self.chip().map(|chip| Arc::new(Tofino(chip)) as _)
    }

    /// The controller's program. An emulated switch takes only a program that is packed for a Tofino, and runs v1model's.
    pub fn program(self) -> Program {
        if self == Target::V1model {
            return Program::v1model().unwrap();
        }
        let program = TofinoProgram {
            name: "ultima".into(),
            pipeline: "pipe".into(),
            bfrt: b"{}".to_vec(),
            context: b"{}".to_vec(),
            binary: b"tofino.bin".to_vec(),
        };
        let p4info = ultima_p4::v1model().p4info;
        Program::tofino(ProgramForm::Tofino, program, p4info, "p4info").unwrap()
    }

    /// A controller's configuration; the caller sets its address.
    pub fn config(self, fabric: Fabric) -> Config {
        Config {
            timers: TIMERS,
            ..Config::with_program(fabric, self.program())
        }
    }

    /// The configuration of a controller of the fabric in `text`.
    pub fn config_for(self, text: &str, source: &str) -> Config {
        self.config(self.fabric(text, source))
    }

    /// The fabric in `text`.
    pub fn fabric(self, text: &str, source: &str) -> Fabric {
        match self.chip() {
            None => fabric::parse(text, source),
            Some(chip) => fabric::parse(&on_tofino(text, chip), source),
        }
        .unwrap()
    }

    /// The port that the file calls `number`.
    pub fn port(self, number: u16) -> u16 {
        if self == Target::V1model {
            return number;
        }
        let mut connectors = CONNECTORS.into_iter();
        connectors.find(|(at, _)| *at == number).unwrap().1
    }

    /// The name of an element of the fabric, such as `s1/9-s2/9`.
    pub fn element(self, name: &str) -> String {
        match self {
            Target::V1model => name.to_owned(),
            Target::Tofino => element_of_tofinos(name),
        }
    }

    /// The rate that a meter keeps of `rate`.
    pub fn rate(self, rate: i64) -> i64 {
        let written = MeterConfig {
            cir: rate,
            ..Default::default()
        };
        match self {
            Target::V1model => rate,
            Target::Tofino => METER.kept(&written).cir,
        }
    }

    /// Removes from an update everything that a switch does not keep.
    pub fn forget(self, update: &mut Update) {
        let kind = update.r#type();
        if let (
            Some(chip),
            Some(Entity {
                entity: Some(entity),
            }),
        ) = (self.chip(), &mut update.entity)
        {
            let tofino: &dyn switch::Target = &Tofino(chip);
            tofino.admit(kind, entity).unwrap();
        }
    }
}

/// Connectors that fabrics use, and the first device port of each.
const CONNECTORS: [(u16, u16); 13] = [
    (1, 132),
    (2, 140),
    (3, 148),
    (4, 156),
    (5, 164),
    (6, 172),
    (7, 180),
    (8, 188),
    (9, 56),
    (101, 48),
    (102, 40),
    (103, 32),
    (104, 24),
];

fn element_of_tofinos(name: &str) -> String {
    let end = |end: &str| match end.contains('/') {
        true => format!("{end}/0"),
        false => end.to_owned(),
    };
    let ends: Vec<String> = name.split('-').map(end).collect();
    ends.join("-")
}

/// Rewrites a fabric for Tofinos: ports become first channels of connectors, and links without a rate get `rate: none`, so
/// that they have none from their ports' speed.
fn on_tofino(text: &str, chip: &Chip) -> String {
    let map: Vec<String> = (CONNECTORS.iter())
        .map(|(connector, first)| format!("{connector}: {first}"))
        .collect();
    let panel = format!("target: {}, port_map: {{ {} }}", chip.name, map.join(", "));
    let mut section = "";
    let mut lines = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(':') {
            section = name;
        }
        let line = line.replace(" target: v1model,", "");
        lines.push(match (section, line.split_once("- { ends: [")) {
            ("switches", _) => line.replace("- { name: ", &format!("- {{ {panel}, name: ")),
            ("links", Some((before, ends))) => {
                let (ends, rest) = ends.split_once(']').unwrap();
                let ends: Vec<String> = ends.split(", ").map(element_of_tofinos).collect();
                let rate = match rest.contains("rate:") {
                    true => "",
                    false => ", rate: none",
                };
                format!("{before}- {{ ends: [{}]{rate}{rest}", ends.join(", "))
            }
            _ => line,
        });
    }
    lines.join("\n")
}
