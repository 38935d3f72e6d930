//! `ultima controller status`: what each of several controllers is.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use ultima_controller::api::{GetStandingResponse, Role};
use ultima_controller::client::Client;

use super::controller_address::ControllerAddress;
use ultima_console::output::{self, Output, table};

/// Show which controller leads, in which term, who stands by, and how far behind
///
/// TERM is the one in which it leads, or that it follows; each takeover begins another. CHANGES is how many its store has, and of which term
/// the last is; SWITCHES how many it leads or, of one that stands by, how many say that they have no primary; FOLLOWERS how many have all
/// of it, how many have to, and who. Asks all controllers that --controller names, separated by commas. The exit code is 1 where none of them leads.
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
    /// `primary`, `standby`, or why it is not known.
    role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    standing: Option<Standing>,
}

#[derive(Serialize)]
struct Standing {
    controller: String,
    /// The term that it leads in, or has accepted, and who claimed that.
    term: u64,
    term_of: String,
    /// How many changes its store has seen, and in whose term the last was.
    changes: u64,
    changes_term: u64,
    /// How many controllers there are, and how many others have stored what is promised.
    controllers: u32,
    copies: u32,
    followers: Vec<Follower>,
    switches: u32,
    /// As a primary: those that it leads. As a standby: those without a primary.
    switches_told: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    primary: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
}

#[derive(Serialize)]
struct Follower {
    controller: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    behind: Option<u64>,
}

fn number(controller: u32) -> String {
    format!("{controller:08x}")
}

impl From<GetStandingResponse> for Standing {
    fn from(it: GetStandingResponse) -> Self {
        let (term, history) = (it.term.unwrap_or_default(), it.history.unwrap_or_default());
        let followers = it.followers.iter().map(|follower| Follower {
            controller: number(follower.controller),
            behind: follower.behind,
        });
        Standing {
            controller: number(it.controller),
            term: term.number,
            term_of: number(term.controller),
            changes: history.changes,
            changes_term: history.term.unwrap_or_default().number,
            controllers: it.controllers,
            copies: it.copies,
            followers: followers.collect(),
            switches: it.switches,
            switches_told: it.switches_told,
            primary: it.primary,
            problem: it.problem,
        }
    }
}

/// Asks all of them.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let addresses = arguments.at.controller.split(',').map(str::trim);
    super::runtime()?.block_on(async {
        let mut documents = Vec::new();
        for address in addresses {
            let (role, standing) = match Client::standing(address).await {
                Ok(standing) => {
                    let role = match standing.role() {
                        Role::Primary => "primary",
                        _ => "standby",
                    };
                    (role.to_owned(), Some(Standing::from(standing)))
                }
                Err(error) => (error.to_string(), None),
            };
            documents.push(Document {
                address: address.to_owned(),
                role,
                standing,
            });
        }
        let leads = documents.iter().any(|document| document.role == "primary");
        let text = arguments.output.print(&documents, || text(&documents))?;
        output::print(&text)?;
        Ok(ExitCode::from(u8::from(!leads)))
    })
}

/// Who follows a primary that needs so many.
fn followed(copies: u32, followers: &[String]) -> String {
    match (copies, followers) {
        (0, []) => "none needed".to_owned(),
        (0, _) => format!("{}, none needed", followers.join(", ")),
        (_, []) => format!("0 of {copies} needed"),
        _ => format!(
            "{} of {copies} needed: {}",
            followers.len(),
            followers.join(", ")
        ),
    }
}

fn text(documents: &[Document]) -> String {
    let rows = documents.iter().map(|document| {
        let address = document.address.clone();
        let Some(it) = &document.standing else {
            let nothing = [(); 5].map(|()| "-".to_owned());
            let [controller, term, changes, switches, followers] = nothing;
            let role = document.role.clone();
            return [
                address, controller, term, changes, switches, followers, role,
            ];
        };
        let followers = it.followers.iter().map(|follower| match follower.behind {
            Some(0) => follower.controller.clone(),
            Some(behind) => format!("{} ({behind} behind)", follower.controller),
            None => format!("{} (copying)", follower.controller),
        });
        let followers: Vec<String> = followers.collect();
        let (what, followers) = match document.role.as_str() {
            "primary" => ("led", followed(it.copies, &followers)),
            _ => ("vacant", "-".to_owned()),
        };
        let mut role = document.role.clone();
        if !it.primary.is_empty() {
            role += &format!(" of {}", it.primary);
        }
        if !it.problem.is_empty() {
            role += &format!("; {}", it.problem);
        }
        [
            address,
            it.controller.clone(),
            it.term.to_string(),
            format!("{} in term {}", it.changes, it.changes_term),
            format!("{} of {} {what}", it.switches_told, it.switches),
            followers,
            role,
        ]
    });
    let header = [
        "ADDRESS",
        "NUMBER",
        "TERM",
        "CHANGES",
        "SWITCHES",
        "FOLLOWERS",
        "ROLE",
    ];
    table(header, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_leads_alone_needs_nobody() {
        assert_eq!(followed(0, &[]), "none needed");
        assert_eq!(followed(1, &[]), "0 of 1 needed");
        assert_eq!(followed(0, &["2".into()]), "2, none needed");
        assert_eq!(
            followed(1, &["2".into(), "3".into()]),
            "2 of 1 needed: 2, 3"
        );
    }
}
