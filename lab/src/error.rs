//! Errors of labs.

use std::io;
use std::path::PathBuf;

use ultima_planner::yaml::LoadError;

use crate::name::LabName;
use crate::switch_kind::SwitchKind;

/// An error of a lab, in one line.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Not root: only root may create network namespaces.
    #[error("labs use network namespaces, which only root may create and enter; run this as root")]
    NotRoot,
    /// A program that labs need is missing.
    #[error("{program} is not on the PATH; {hint}")]
    NoProgram {
        /// The program's name.
        program: &'static str,
        /// The installation hint.
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
        /// The fabric's file, as given.
        file: PathBuf,
        /// The kind of its switches.
        switch: SwitchKind,
        /// Number of running processes.
        runs: usize,
        /// Number of started processes.
        started: usize,
    },
    /// The lab is incomplete.
    #[error("lab {name} is incomplete; remove it with `ultima lab down {name}`")]
    Incomplete {
        /// Its name.
        name: LabName,
    },
    /// No such lab.
    #[error("there is no lab {name}; {}", known_labs(.known))]
    NoLab {
        /// The given name.
        name: LabName,
        /// The existing labs.
        known: Vec<LabName>,
    },
    /// No name was given, and there is not exactly one lab.
    #[error("{}", which_lab(.known, .argument))]
    WhichLab {
        /// The argument that names a lab.
        argument: &'static str,
        /// The existing labs.
        known: Vec<LabName>,
    },
    /// The lab has no host or switch of that name.
    #[error("lab {lab} has no host or switch {name:?}; it has {nodes}")]
    NoNode {
        /// The lab.
        lab: LabName,
        /// The given name.
        name: String,
        /// The existing names.
        nodes: String,
    },
    /// The namespace of a host or switch was deleted.
    #[error(
        "the namespace of {node} is gone; run `ultima lab down {lab}`, then start lab {lab} again"
    )]
    Gone {
        /// The lab.
        lab: LabName,
        /// The host or switch.
        node: String,
    },
    /// The calling process would stop itself.
    #[error("this command runs inside lab {name}; leave it first")]
    Inside {
        /// The lab.
        name: LabName,
    },
    /// A switch's address is outside the lab's namespace.
    #[error(
        "switch {switch} is at {grpc}, which a lab does not have; omit `grpc`, or use 127.0.0.1 with a port of its own"
    )]
    Grpc {
        /// The switch.
        switch: String,
        /// Its address in the fabric.
        grpc: String,
    },
    /// A switch is hardware.
    #[error(
        "switch {switch} has the target {target}, which does not run in a lab; omit the target to use v1model, with port numbers"
    )]
    FrontPanel {
        /// The switch.
        switch: String,
        /// Its target.
        target: &'static str,
    },
    /// A switch has TLS.
    #[error(
        "switch {switch} has `tls`; the switches of a lab serve without TLS and only inside the lab, so omit `tls`"
    )]
    Tls {
        /// The switch.
        switch: String,
    },
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] LoadError),
    /// iproute2 failed.
    #[error("ip: {said}")]
    Ip {
        /// Its message.
        said: String,
    },
    /// A process of the lab ended, or was not ready in time.
    #[error("{role}: {said}")]
    Process {
        /// The process's role.
        role: String,
        /// Its last line, or the missed deadline.
        said: String,
    },
    /// A process does not stop.
    #[error("process {pid} of lab {name} cannot be stopped: {source}")]
    Stop {
        /// The lab.
        name: LabName,
        /// Its number.
        pid: i32,
        /// The system's error.
        source: io::Error,
    },
    /// A file or folder cannot be accessed.
    #[error("{}: {source}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The user interrupted the command.
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
        return "no lab is up; start one with `ultima lab up FILE`".to_owned();
    }
    let names: Vec<&str> = labs.iter().map(LabName::as_str).collect();
    format!("labs that are up: {}", names.join(", "))
}

fn which_lab(labs: &[LabName], argument: &str) -> String {
    let names: Vec<&str> = labs.iter().map(LabName::as_str).collect();
    match labs {
        [] => "no lab is up; start one with `ultima lab up FILE`".to_owned(),
        _ => format!(
            "several labs are up ({}); pass {argument}",
            names.join(", ")
        ),
    }
}
