//! Names that shells complete: those of the objects at the controller, of contexts and of labs.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, ValueEnum};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use tokio::time::timeout;
use ultima_api::client::Client;
use ultima_api::{Line as GridLine, v1 as api};
use ultima_lab::LabName;

use crate::controller_address::ControllerAddress;
use crate::listing::listing;
use crate::which::{Kind, Which};

/// A shell waits no longer.
const BOUND: Duration = Duration::from_millis(500);

/// The controller of the command line and the environment.
#[derive(Parser)]
struct At {
    #[command(flatten)]
    at: ControllerAddress,
}

/// The command line.
struct Line {
    /// The words before the one to complete.
    before: Vec<String>,
    /// The word to complete, at the cursor.
    word: String,
    /// The words after it.
    after: Vec<String>,
}

impl Line {
    /// Reads the words that a shell's script passes after `--`. Fish passes only those up to the cursor; other shells say in the
    /// variable which one is at the cursor.
    fn read() -> Self {
        let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
        let cursor = std::env::var("_CLAP_COMPLETE_INDEX").ok();
        let cursor = cursor.and_then(|cursor| cursor.parse().ok());
        let words = words.map(|word| word.to_string_lossy().into_owned());
        Line::of(words.collect(), cursor.unwrap_or(usize::MAX))
    }

    /// The line with the cursor at the word of this index, or at the last one.
    fn of(mut words: Vec<String>, cursor: usize) -> Self {
        let after = words.split_off(words.len().min(cursor.saturating_add(1)));
        let (mut before, after) = (joined(words), joined(after));
        let word = before.pop().unwrap_or_default();
        Line {
            before,
            word,
            after,
        }
    }

    /// The value of an option such as `--context`.
    fn value(&self, option: &str) -> Option<&str> {
        let mut words = self.before.iter().chain(&self.after);
        words
            .find_map(|word| match word.strip_prefix(option) {
                Some("") => Some(None),
                Some(rest) => rest.strip_prefix('=').map(Some),
                None => None,
            })?
            .or_else(|| words.next().map(String::as_str))
    }

    /// The result of `ask`. Nothing if the controller does not answer in time: a shell has no place for an error.
    fn asked<T: Default>(&self, ask: impl AsyncFnOnce(&Client) -> Result<T>) -> T {
        let result = || -> Result<T> {
            let command = At::command();
            let options = command.get_arguments().filter_map(clap::Arg::get_long);
            let given = options.filter_map(|option| {
                let option = format!("--{option}");
                let value = self.value(&option)?.to_owned();
                Some([option, value])
            });
            let words = std::iter::once("ultima".to_owned()).chain(given.flatten());
            let At { at } = At::try_parse_from(words)?;
            let asked = async {
                let (address, tls) = (at.address()?, at.tls()?);
                let asked = async { ask(&Client::connect_to_read(&address, tls).await?).await };
                timeout(BOUND, asked).await?
            };
            crate::runtime::runtime()?.block_on(asked)
        };
        result().unwrap_or_default()
    }

    /// The names of a kind, and those of grids.
    fn names(&self, kind: Kind) -> Vec<String> {
        let rows = self.asked(async |client| Ok(listing(client, kind).await?.rows));
        let names: BTreeSet<String> = rows.into_iter().map(|row| row.name).collect();
        let is_job = |_: &&String| kind == Kind::Jobs;
        let grids = names
            .iter()
            .filter(is_job)
            .filter_map(|name| GridLine::of(name));
        let grids: BTreeSet<String> = grids.map(|(grid, _)| grid.to_owned()).collect();
        (&names | &grids).into_iter().collect()
    }

    /// The names of a kind, each with the kind before it: `job/train`.
    fn objects(&self, kind: Kind, written: &str) -> Vec<String> {
        let names = self.names(kind).into_iter();
        names.map(|name| format!("{written}/{name}")).collect()
    }

    /// The members of the jobs that the line names after `job resize` or `job evict`.
    fn members(&self) -> Vec<api::Member> {
        let is_verb = |word: &&String| ["resize", "evict"].contains(&word.as_str());
        let words = self.before.iter().skip_while(|word| !is_verb(word));
        let named: Vec<String> = words.skip(1).flat_map(|word| job(word)).collect();
        self.asked(async |client| {
            let jobs = client.jobs().await?.into_iter();
            let jobs = jobs.filter(|job| named.contains(&job.name));
            Ok(jobs.flat_map(|job| job.members).collect())
        })
    }

    /// The kinds of objects, names, or objects with their kind, as the words before suggest.
    fn any_object(&self, kinds: &[Kind]) -> Vec<String> {
        let kind = |text: &str| Kind::from_str(text, false).ok();
        if let Some((written, _)) = self.word.split_once('/')
            && let Some(kind) = kind(written).filter(|kind| kinds.contains(kind))
        {
            return self.objects(kind, written);
        }
        let which = self.before.iter().rev().find_map(|word| word.parse().ok());
        match which {
            Some(Which::One(kind, _)) => self.objects(kind, kind.singular()),
            // An event's name is a number; its object is a better one.
            Some(Which::All(of)) if of != [Kind::Events] => match of[..] {
                [kind] => self.names(kind),
                _ => Vec::new(),
            },
            Some(Which::All(_)) | None => {
                let values = kinds.iter().filter_map(ValueEnum::to_possible_value);
                values.map(|value| value.get_name().to_owned()).collect()
            }
        }
    }
}

/// Joins words that bash has split at `:` and `=`.
fn joined(words: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for word in words {
        let joins = joined.last().is_some_and(|last| last.ends_with([':', '=']));
        match joined.last_mut() {
            Some(last) if joins || word == ":" || word == "=" => last.push_str(&word),
            _ => joined.push(word),
        }
    }
    joined
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

/// Completes with the names that `names` returns.
fn candidates(names: impl Fn(&Line) -> Vec<String> + Send + Sync + 'static) -> ArgValueCandidates {
    ArgValueCandidates::new(move || {
        let names = names(&Line::read()).into_iter();
        names.map(CompletionCandidate::new).collect()
    })
}

/// Jobs and grids, which may have their kind.
pub fn jobs() -> ArgValueCandidates {
    candidates(|line| match line.word.split_once('/') {
        Some((written @ ("job" | "jobs"), _)) => line.objects(Kind::Jobs, written),
        _ => line.names(Kind::Jobs),
    })
}

/// Hosts of the fabric.
pub fn hosts() -> ArgValueCandidates {
    candidates(|line| line.names(Kind::Hosts))
}

/// Switches, ports and links, which can be drained.
pub fn elements() -> ArgValueCandidates {
    candidates(|line| {
        let kinds = [Kind::Switches, Kind::Ports, Kind::Links].into_iter();
        kinds.flat_map(|kind| line.names(kind)).collect()
    })
}

/// Objects of all kinds: kinds, names after a kind, and objects with their kind.
pub fn objects() -> ArgValueCandidates {
    candidates(|line| line.any_object(Kind::value_variants()))
}

/// The same for jobs alone.
pub fn job_objects() -> ArgValueCandidates {
    candidates(|line| line.any_object(&[Kind::Jobs]))
}

/// Hosts with members of the line's job.
pub fn member_hosts() -> ArgValueCandidates {
    candidates(|line| {
        let hosts = line.members().into_iter().map(|member| member.host);
        hosts.collect::<BTreeSet<_>>().into_iter().collect()
    })
}

/// Ranks of the line's job, and hosts with one of them.
pub fn members() -> ArgValueCandidates {
    candidates(|line| {
        let members = line.members();
        let of = |host: &str| members.iter().filter(|it| it.host == host).count();
        let hosts = members.iter().filter(|it| of(&it.host) == 1);
        let hosts = hosts.map(|it| it.host.clone());
        let ranks = members.iter().map(|it| it.rank.to_string());
        hosts.chain(ranks).collect()
    })
}

fn running() -> Vec<LabName> {
    ultima_lab::names().unwrap_or_default()
}

/// Labs that are up.
pub fn labs() -> ArgValueCandidates {
    candidates(|_| running().iter().map(ToString::to_string).collect())
}

/// Hosts and switches of the line's lab, or of the only one.
pub fn nodes() -> ArgValueCandidates {
    candidates(|line| {
        let mut labs = running();
        if let Some(name) = line.value("--name") {
            labs.retain(|lab| lab.as_str() == name);
        }
        let [lab] = &labs[..] else {
            return Vec::new();
        };
        let plan = ultima_lab::status(lab).ok().and_then(|status| status.plan);
        let Some(plan) = plan else {
            return Vec::new();
        };
        let hosts = plan.hosts.into_iter().map(|host| host.name);
        let switches = plan.switches.into_iter().map(|switch| switch.name);
        hosts.chain(switches).collect()
    })
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

    #[test]
    fn words_of_bash_are_joined_and_options_have_values() {
        let at =
            |words: &str, cursor| Line::of(words.split(' ').map(str::to_owned).collect(), cursor);
        let of = |words: &str| at(words, usize::MAX);
        let line = of("ultima --controller 10.0.0.1 : 9555 get --name = a job/t");
        assert_eq!(line.value("--controller"), Some("10.0.0.1:9555"));
        assert_eq!(line.value("--name"), Some("a"));
        assert_eq!(line.value("--context"), None);
        assert_eq!(line.word, "job/t");
        let line = of("ultima get --context");
        assert_eq!((line.value("--context"), &*line.word), (None, "--context"));
        // Options after the cursor count.
        let line = at("ultima get job/t host --context lab --name = a", 2);
        assert_eq!(
            (&line.before[..], &*line.word),
            (&["ultima", "get"].map(String::from)[..], "job/t")
        );
        assert_eq!(
            (line.value("--context"), line.value("--name")),
            (Some("lab"), Some("a"))
        );
    }
}
