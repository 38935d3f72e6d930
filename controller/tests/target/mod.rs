//! On which target a test's switches are: v1model, and once more, where `emulated.rs` includes the test, a Tofino as
//! `ultima_emulation` has it. Fabrics are written for v1model.

#![allow(dead_code)] // Each test uses its part.

use std::sync::Arc;

use ultima_controller::fabric::{self, Fabric};
use ultima_controller::program::Program;
use ultima_controller::server::Config;
use ultima_controller::target::ProgramForm;
use ultima_emulation::Tofino;
use ultima_p4runtime::tofino::{Chip, METER, TOFINO, TofinoProgram};
use ultima_p4runtime::v1::{Entity, MeterConfig, Update};
use ultima_switch::target::Target;

/// What is emulated; none on v1model.
pub fn chip() -> Option<&'static Chip> {
    module_path!().starts_with("emulated::").then_some(&TOFINO)
}

/// How an embedded switch is started.
pub fn emulation() -> Option<Arc<dyn Target>> {
    chip().map(|chip| Arc::new(Tofino(chip)) as _)
}

/// The controller's program. What an emulated switch runs is its own, but it takes only what is packed for a Tofino.
pub fn program() -> Program {
    if chip().is_none() {
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

/// A controller's configuration, but for where it listens.
pub fn config(fabric: Fabric) -> Config {
    Config::with_program(fabric, program())
}

/// Takes out of an update what a switch does not keep of it.
pub fn forget(update: &mut Update) {
    let kind = update.r#type();
    if let (
        Some(chip),
        Some(Entity {
            entity: Some(entity),
        }),
    ) = (chip(), &mut update.entity)
    {
        let mut no_groups = std::iter::empty();
        Tofino(chip).admit(&mut no_groups, kind, entity).unwrap();
    }
}

/// The fabric in `text`.
pub fn fabric(text: &str, source: &str) -> Fabric {
    match chip() {
        None => fabric::parse(text, source),
        Some(chip) => fabric::parse(&on_tofino(text, chip), source),
    }
    .unwrap()
}

/// Connectors that fabrics have links at, and their first device ports.
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

/// The number of what the file calls port `number`.
pub fn port(number: u16) -> u16 {
    if chip().is_none() {
        return number;
    }
    let mut connectors = CONNECTORS.into_iter();
    connectors.find(|(at, _)| *at == number).unwrap().1
}

/// The rate of a meter that was told `rate`.
pub fn rate(rate: i64) -> i64 {
    let told = MeterConfig {
        cir: rate,
        ..Default::default()
    };
    match chip() {
        None => rate,
        Some(_) => METER.kept(&told).cir,
    }
}

/// A name of a part of the fabric, such as `s1/9-s2/9`.
pub fn part(name: &str) -> String {
    match chip() {
        None => name.to_owned(),
        Some(_) => {
            let end = |end: &str| match end.contains('/') {
                true => format!("{end}/0"),
                false => end.to_owned(),
            };
            let ends: Vec<String> = name.split('-').map(end).collect();
            ends.join("-")
        }
    }
}

/// The same fabric of Tofinos: ports become first channels of connectors, and links without a rate get none from their
/// ports' speed.
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
                let ends: Vec<String> = ends.split(", ").map(part).collect();
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
