//! Names that shells complete: those of the objects at the controller.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use tokio::time::timeout;
use ultima_api::client::Client;

use crate::controller_address::ControllerAddress;
use crate::listing::{Kind, listing};

/// A shell waits no longer.
const BOUND: Duration = Duration::from_millis(500);

/// The controller of the environment. A line that names another one is completed without it.
#[derive(Parser)]
struct FromEnvironment {
    #[command(flatten)]
    at: ControllerAddress,
}

/// The name of a job, which may be written as `get -o name` prints it: `job/train`.
pub fn job(text: &str) -> Result<String, Infallible> {
    let name = text.strip_prefix("job/").or(text.strip_prefix("jobs/"));
    Ok(name.unwrap_or(text).to_owned())
}

/// The name of an element of the fabric, which may be written as `switch/s1`.
pub fn element(text: &str) -> Result<String, Infallible> {
    let [switch, port, link] = ["switch/", "port/", "link/"].map(|kind| text.strip_prefix(kind));
    // A switch may have the name of a kind: switch/9 is its port.
    let is_port = |name: &&str| name.starts_with(|first: char| first.is_ascii_digit());
    let switch = switch.filter(|name| !is_port(name));
    let other = port.or(link).filter(|name| name.contains('/'));
    Ok(switch.or(other).unwrap_or(text).to_owned())
}

/// The names of jobs.
pub fn jobs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of(Kind::Jobs))
}

/// The names of switches, ports and links, which can be drained.
pub fn elements() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        [Kind::Switches, Kind::Ports, Kind::Links]
            .into_iter()
            .flat_map(of)
            .collect()
    })
}

/// The kinds of objects.
pub fn kinds() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let kinds = Kind::value_variants().iter();
        let kinds = kinds.filter_map(|kind| Some(kind.to_possible_value()?.get_name().to_owned()));
        kinds.map(CompletionCandidate::new).collect()
    })
}

/// The names of the kind that the line has named.
pub fn of_kind() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        // The last word is the one to complete.
        let mut words = std::env::args().rev().skip(1);
        let kind = words.find_map(|word| Kind::from_str(&word, false).ok());
        kind.map(of).unwrap_or_default()
    })
}

/// No names if the controller does not answer in time: a shell has no place for an error.
fn of(kind: Kind) -> Vec<CompletionCandidate> {
    let names = || -> Result<Vec<String>> {
        let FromEnvironment { at } = FromEnvironment::try_parse_from(["ultima"])?;
        let asked = async {
            let (address, tls) = (at.address()?, at.tls()?);
            let listing = async {
                let client = Client::connect_to_read(&address, tls).await?;
                listing(&client, kind).await
            };
            timeout(BOUND, listing).await?
        };
        let listing = crate::runtime::runtime()?.block_on(asked)?;
        Ok(listing.rows.into_iter().map(|row| row.name).collect())
    };
    let names = names().unwrap_or_default().into_iter();
    names.map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_their_kind() {
        let names = ["job/train", "jobs/train", "train"].map(|text| job(text).unwrap());
        assert_eq!(names, ["train"; 3]);
        for (text, name) in [
            ("switch/s1", "s1"),
            ("port/s1/9", "s1/9"),
            ("link/s1/9-s2/9", "s1/9-s2/9"),
            ("s1/9", "s1/9"),
            // Ports of switches with such names.
            ("switch/9", "switch/9"),
            ("link/9", "link/9"),
        ] {
            assert_eq!(element(text).unwrap(), name);
        }
    }
}
