//! Why a lab is not as it was asked for.

use std::io;
use std::path::PathBuf;

use ultima_controller::fabric::FabricError;

use crate::name::LabName;
use crate::state::SwitchKind;

/// What went wrong, in one line.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Not root, who alone makes network namespaces.
    #[error("labs use network namespaces, which only root may create and enter; run this as root")]
    NotRoot,
    /// A program that labs need.
    #[error("{program} is not on the PATH; {hint}")]
    NoProgram {
        /// What it is called.
        program: &'static str,
        /// Where to get it.
        hint: &'static str,
    },
    /// The lab exists.
    #[error(
        "lab {name} is up already: {} on {switch}, {runs} of {started} processes run; show it with `ultima lab status {name}`, \
         stop it with `ultima lab down {name}`", file.display()
    )]
    Up {
        /// Its name.
        name: LabName,
        /// The fabric's file, as it was named.
        file: PathBuf,
        /// Which switch runs.
        switch: SwitchKind,
        /// Its processes that run.
        runs: usize,
        /// All that were started.
        started: usize,
    },
    /// A part of it exists.
    #[error("lab {name} was left half-way; remove it with `ultima lab down {name}`")]
    HalfWay {
        /// Its name.
        name: LabName,
    },
    /// No such lab.
    #[error("there is no lab {name}; {}", known_labs(.known))]
    NoLab {
        /// The name that was asked for.
        name: LabName,
        /// Those that there are.
        known: Vec<LabName>,
    },
    /// No name was given and it is not clear which lab is meant.
    #[error("name a lab; {}", known_labs(.known))]
    WhichLab {
        /// Those that there are.
        known: Vec<LabName>,
    },
    /// The lab has no host or switch of that name.
    #[error("lab {lab} has no host or switch {name:?}; it has {nodes}")]
    NoNode {
        /// The lab.
        lab: LabName,
        /// The name that was asked for.
        name: String,
        /// Those that there are.
        nodes: String,
    },
    /// A host or switch whose namespace somebody has deleted.
    #[error(
        "the namespace of {node} is gone; run `ultima lab down {lab}`, then start lab {lab} again"
    )]
    Gone {
        /// The lab.
        lab: LabName,
        /// The host or switch.
        node: String,
    },
    /// The caller would end itself.
    #[error("this command runs inside lab {name}; leave it first")]
    Inside {
        /// The lab.
        name: LabName,
    },
    /// A switch's address that is none in the lab's namespace.
    #[error(
        "switch {switch} is at {grpc}, which a lab does not have; omit `grpc`, or use 127.0.0.1 with a port of its own"
    )]
    Grpc {
        /// The switch.
        switch: String,
        /// Its address in the fabric.
        grpc: String,
    },
    /// A switch that is hardware.
    #[error(
        "switch {switch} has the target {target}, which does not run in a lab; omit the target to use v1model, with port numbers"
    )]
    FrontPanel {
        /// The switch.
        switch: String,
        /// Its target.
        target: &'static str,
    },
    /// A switch that is to serve TLS.
    #[error(
        "switch {switch} has `tls`; the switches of a lab serve without TLS and only inside the lab, so omit `tls`"
    )]
    Tls {
        /// The switch.
        switch: String,
    },
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// iproute2 says no.
    #[error("ip: {said}")]
    Ip {
        /// What it said.
        said: String,
    },
    /// A process of the lab ended, or never was ready.
    #[error("{role}: {said}")]
    Process {
        /// What it was to be.
        role: String,
        /// Its last words, or what it did not do.
        said: String,
    },
    /// A process that cannot be stopped.
    #[error("process {pid} of lab {name} cannot be stopped: {source}")]
    Stop {
        /// The lab.
        name: LabName,
        /// Its number.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
    /// A file or folder.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A system call.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LabError {
        let path = path.into();
        move |source| LabError::File { path, source }
    }

    pub(crate) fn system<E: Into<io::Error>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> LabError {
        let what = what.into();
        move |source| LabError::System {
            what,
            source: source.into(),
        }
    }
}

fn known_labs(labs: &[LabName]) -> String {
    if labs.is_empty() {
        return "none is up; start one with `ultima lab up FILE`".to_owned();
    }
    let names: Vec<&str> = labs.iter().map(LabName::as_str).collect();
    format!("there are: {}", names.join(", "))
}
