//! `ultima controller status`: the role of each of several controllers.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use ultima_api::client::Client;
use ultima_api::v1::{GetStandingResponse, Role};

use crate::controller_address::ControllerAddress;
use crate::exit::Exit;
use ultima_console::output::{self, Output, table};

/// Show which controller leads
///
/// Asks every controller that --controller names. The exit code is 3 if none of them answers, and 1 if those that answer do
/// not lead, or the leader leads no switch.
///
/// REVISION: with etcd, the revision that elected the leader; it rises with each takeover. SWITCHES: of a leader, the
/// switches that it leads.
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
    /// `leader`, `standby`, `starting`, or `unknown` if it does not answer.
    role: &'static str,
    /// Why it does not answer or lead; else empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize)]
struct Status {
    /// The revision of etcd that elected a leader; 0 if it shares no store.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    switches: u32,
    /// The number of switches that a leader leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    switches_led: Option<u32>,
    /// The address of a standby's leader.
    #[serde(skip_serializing_if = "String::is_empty")]
    leader: String,
}

const LEADER: &str = "leader";

impl Document {
    fn new(address: &str, answer: GetStandingResponse) -> Self {
        let is_leader = answer.role() == Role::Leader;
        Document {
            address: address.to_owned(),
            role: match answer.role() {
                Role::Leader => LEADER,
                Role::Starting => "starting",
                Role::Standby | Role::Unspecified => "standby",
            },
            problem: answer.problem,
            status: Some(Status {
                revision: is_leader.then_some(answer.revision),
                switches: answer.switches,
                switches_led: is_leader.then_some(answer.switches_led),
                leader: answer.leader,
            }),
        }
    }

    fn row(&self) -> [String; 5] {
        let status = match self.problem.as_str() {
            "" => "ok".to_owned(),
            problem => problem.to_owned(),
        };
        let unknown = || "-".to_owned();
        let it = self.status.as_ref();
        let revision = it.and_then(|it| it.revision.filter(|revision| *revision > 0));
        let revision = revision.map(|revision| revision.to_string());
        let switches =
            it.and_then(|it| Some(format!("{} of {} led", it.switches_led?, it.switches)));
        let role = match it.map_or("", |it| it.leader.as_str()) {
            "" => self.role.to_owned(),
            leader => format!("{} of {leader}", self.role),
        };
        [
            self.address.clone(),
            role,
            revision.unwrap_or_else(unknown),
            switches.unwrap_or_else(unknown),
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
        let (mut documents, mut failures) = (Vec::new(), Vec::new());
        for address in addresses {
            documents.push(match Client::standing(address, tls.as_ref()).await {
                Ok(answer) => Document::new(address, answer),
                Err(error) => {
                    let problem = error.to_string();
                    failures.push(error);
                    Document {
                        address: address.to_owned(),
                        role: "unknown",
                        problem,
                        status: None,
                    }
                }
            });
        }
        let header = ["ADDRESS", "ROLE", "REVISION", "SWITCHES", "STATUS"];
        let text = || table(header, documents.iter().map(Document::row));
        let text = arguments.output.print(&documents, text)?;
        output::print(&text)?;
        let leaders = || documents.iter().filter(|document| document.role == LEADER);
        let has_switches = |it: &Document| {
            it.status
                .as_ref()
                .is_some_and(|it| it.switches_led != Some(0))
        };
        if leaders().any(has_switches) {
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(Document {
            address, problem, ..
        }) = leaders().next()
        {
            let why = format!("the leader at {address} leads none of its switches: {problem}");
            return Err(Exit::Failure.because(why).into());
        }
        if failures.len() == documents.len() {
            let is_only_one = failures.len() == 1;
            let mut failures = failures.into_iter().map(anyhow::Error::from);
            // The error of a controller that answers says more.
            let is_reported =
                |error: &anyhow::Error| is_only_one || Exit::of(error) != Exit::Unavailable;
            let none = || format!("no controller at {given} answers");
            let reported = failures.find(is_reported);
            return Err(reported.unwrap_or_else(|| Exit::Unavailable.because(none()).into()));
        }
        // Those without a status do not answer.
        let mut others = documents.iter().filter(|it| it.status.is_some());
        let problem = others.find_map(|it| Some(&*it.problem).filter(|it| !it.is_empty()));
        let why = match problem {
            Some(problem) => format!("no controller at {given} leads: {problem}"),
            None => format!("no controller at {given} leads"),
        };
        Err(Exit::Failure.because(why).into())
    })
}
