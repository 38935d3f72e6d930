//! `ultima controller status`: the role and progress of each of several controllers.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use ultima_api::client::Client;
use ultima_api::v1::{GetStandingResponse, Role};

use crate::controller_address::ControllerAddress;
use crate::exit::Exit;
use ultima_console::output::{self, Output, table};

/// Show which controller leads, and how far the standbys are behind
///
/// Asks every controller that --controller names. The exit code is 1 if none of them leads.
///
/// TERM: the leader's term; each takeover starts a new one. CHANGES: changes in the controller's database, and the term
/// of the last one. SWITCHES: of a leader, the switches that it leads; of a standby, the switches that report no
/// primary. STANDBYS: standbys that have stored all changes, and how many of them a commit needs.
#[derive(clap::Args)]
#[command(
    after_help = "Example: ultima controller status --controller 10.0.0.1:9555,10.0.0.2:9555"
)]
pub struct Arguments {
    #[command(flatten)]
    at: ControllerAddress,
    #[command(flatten)]
    output: Output,
}

/// A controller as it is printed.
#[derive(Serialize)]
struct Document {
    address: String,
    /// `leader`, `standby`, or `unknown` if it does not answer.
    role: &'static str,
    /// Why it does not answer, does not lead, or lacks standbys; else empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize)]
struct Status {
    controller: String,
    /// The term in which it leads or follows, and the controller that started the term.
    term: u64,
    term_of: String,
    /// The number of changes in its database, and the term of the last one.
    changes: u64,
    changes_term: u64,
    /// The number of controllers, this one included.
    controllers: u32,
    /// The number of standbys that must store a change before it is committed.
    copies: u32,
    standbys: Vec<Standby>,
    switches: u32,
    /// Of a leader: switches that it leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    switches_led: Option<u32>,
    /// Of a standby: switches that report no primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    switches_without_primary: Option<u32>,
    /// Of a standby: the address of its leader.
    #[serde(skip_serializing_if = "String::is_empty")]
    leader: String,
}

#[derive(Serialize)]
struct Standby {
    controller: String,
    /// How many changes it lacks; none while it copies the whole database.
    #[serde(skip_serializing_if = "Option::is_none")]
    behind: Option<u64>,
}

const LEADER: &str = "leader";

fn hex(controller: u32) -> String {
    format!("{controller:08x}")
}

impl Document {
    fn new(address: &str, answer: GetStandingResponse) -> Self {
        let is_leader = answer.role() == Role::Leader;
        let (term, history) = (
            answer.term.unwrap_or_default(),
            answer.history.unwrap_or_default(),
        );
        let standbys = answer.followers.iter().map(|standby| Standby {
            controller: hex(standby.controller),
            behind: standby.behind,
        });
        Document {
            address: address.to_owned(),
            role: if is_leader { LEADER } else { "standby" },
            problem: answer.problem,
            status: Some(Status {
                controller: hex(answer.controller),
                term: term.number,
                term_of: hex(term.controller),
                changes: history.changes,
                changes_term: history.term.unwrap_or_default().number,
                controllers: answer.controllers,
                copies: answer.copies,
                standbys: standbys.collect(),
                switches: answer.switches,
                switches_led: is_leader.then_some(answer.supporting_switches),
                switches_without_primary: (!is_leader).then_some(answer.supporting_switches),
                leader: answer.leader,
            }),
        }
    }

    fn row(&self) -> [String; 8] {
        let status = match self.problem.as_str() {
            "" => "ok".to_owned(),
            problem => problem.to_owned(),
        };
        let Some(it) = &self.status else {
            let [id, term, changes, switches, standbys] = [(); 5].map(|()| "-".to_owned());
            let (address, role) = (self.address.clone(), self.role.to_owned());
            return [address, id, role, term, changes, switches, standbys, status];
        };
        let (switches, standbys) = match it.switches_led {
            Some(led) => (
                format!("{led} of {} led", it.switches),
                standbys(it.copies, &it.standbys),
            ),
            None => {
                let vacant = it.switches_without_primary.unwrap_or_default();
                let switches = format!("{vacant} of {} without primary", it.switches);
                (switches, "-".to_owned())
            }
        };
        let role = match it.leader.as_str() {
            "" => self.role.to_owned(),
            leader => format!("{} of {leader}", self.role),
        };
        [
            self.address.clone(),
            it.controller.clone(),
            role,
            it.term.to_string(),
            format!("{} in term {}", it.changes, it.changes_term),
            switches,
            standbys,
            status,
        ]
    }
}

/// Asks all controllers.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let tls = arguments.at.tls()?;
    let given = arguments.at.address()?;
    let addresses = given.split(',').map(str::trim);
    crate::runtime::runtime()?.block_on(async {
        let mut documents = Vec::new();
        for address in addresses {
            documents.push(match Client::standing(address, tls.as_ref()).await {
                Ok(answer) => Document::new(address, answer),
                Err(error) => Document {
                    address: address.to_owned(),
                    role: "unknown",
                    problem: error.to_string(),
                    status: None,
                },
            });
        }
        let text = arguments.output.print(&documents, || text(&documents))?;
        output::print(&text)?;
        if documents.iter().any(|document| document.role == LEADER) {
            return Ok(ExitCode::SUCCESS);
        }
        let why = match &documents[..] {
            [only] => only.problem.clone(),
            _ => format!("no controller at {given} leads"),
        };
        Err(Exit::Failure.because(why).into())
    })
}

fn text(documents: &[Document]) -> String {
    let header = [
        "ADDRESS", "ID", "ROLE", "TERM", "CHANGES", "SWITCHES", "STANDBYS", "STATUS",
    ];
    table(header, documents.iter().map(Document::row))
}

/// The standbys of a leader whose commits need `copies` of them.
fn standbys(copies: u32, standbys: &[Standby]) -> String {
    let name = |standby: &Standby| match standby.behind {
        Some(0) => standby.controller.clone(),
        Some(behind) => format!("{} ({behind} behind)", standby.controller),
        None => format!("{} (copying)", standby.controller),
    };
    let names: Vec<String> = standbys.iter().map(name).collect();
    let names = names.join(", ");
    match (copies, standbys.len()) {
        (0, 0) => "none needed".to_owned(),
        (0, _) => format!("{names}, none needed"),
        (_, 0) => format!("0 of {copies} needed"),
        (_, count) => format!("{count} of {copies} needed: {names}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standbys_are_counted_against_those_needed() {
        let standby = |controller: &str, behind| Standby {
            controller: controller.into(),
            behind,
        };
        assert_eq!(standbys(0, &[]), "none needed");
        assert_eq!(standbys(1, &[]), "0 of 1 needed");
        assert_eq!(standbys(0, &[standby("2", Some(0))]), "2, none needed");
        assert_eq!(
            standbys(1, &[standby("2", Some(7)), standby("3", None)]),
            "2 of 1 needed: 2 (7 behind), 3 (copying)"
        );
    }
}
