//! The store in etcd, which several controllers share, and the election of the one that leads.
//!
//! All keys have a common prefix:
//!
//! | key | value |
//! | --- | --- |
//! | `leader` | the leader's address and fabric, under its lease |
//! | `jobs/00007` | a job's record as JSON, by id; encrypted if the controllers have a [`Secret`] |
//! | `drained/NAME` | an element that an operator has drained; no value |
//! | `id` | the random id of the store, which the switches keep with its jobs |
//! | `last_id` | the last id that was given out |
//! | `form` | the version of this format |
//! | `change` | a random number that names the last change |
//!
//! As in etcd's election recipe (`client/v3/concurrency`), the leader is the controller that created
//! `leader` in a transaction, and every write is a transaction that compares the key's create
//! revision: a deposed leader cannot write. The revision is also the leader's P4Runtime election id,
//! by which switches reject a deposed leader.

mod client;
mod leadership;
mod secret;
mod shared;
#[cfg(test)]
pub(super) mod testing;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_grpc::tls::ClientTls;

pub use client::EtcdError;
pub(crate) use leadership::Election;
pub use leadership::Leadership;
pub use secret::{Secret, SecretError};
pub(crate) use shared::{Shared, read};

/// Default of [`Config::lease`].
pub const LEASE: Duration = Duration::from_secs(3);

/// An etcd cluster, and the keys to use there.
#[derive(Clone, Debug)]
pub struct Config {
    /// HOST:PORT of each member.
    pub endpoints: Vec<String>,
    /// The common prefix of all keys, without a slash at its end.
    pub prefix: String,
    /// TLS of the members; none for plain text.
    pub tls: Option<ClientTls>,
    /// The user, and a file with the password.
    pub user: Option<(String, PathBuf)>,
    /// Encrypts jobs' records; without it, who reads the keys in etcd has the keys of sealed jobs.
    pub secret: Option<Secret>,
    /// Time for which a leader that does not answer keeps the lead, in whole seconds. etcd raises it to 1.5
    /// times its own election timeout.
    pub lease: Duration,
}

impl Config {
    /// Parses `HOST:PORT,.../PREFIX`; the default of PREFIX is `ultima`. None if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (endpoints, prefix) = text.split_once('/').unwrap_or((text, ""));
        let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
        let is_one = |endpoint: &String| {
            let (host, port) = endpoint.rsplit_once(':')?;
            (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(())
        };
        endpoints.iter().map(is_one).collect::<Option<Vec<_>>>()?;
        let prefix = match prefix.trim_end_matches('/') {
            "" => "ultima",
            prefix => prefix,
        };
        Some(Config {
            endpoints,
            prefix: prefix.to_owned(),
            tls: None,
            user: None,
            secret: None,
            lease: LEASE,
        })
    }

    /// The store's name in errors.
    pub fn name(&self) -> String {
        format!("etcd://{}/{}", self.endpoints.join(","), self.prefix)
    }

    fn key(&self, rest: &str) -> Vec<u8> {
        format!("{}/{rest}", self.prefix).into_bytes()
    }
}

/// The value of the key `leader`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The address of its control API.
    pub address: String,
    /// The [digest](ultima_planner::fabric::Fabric::digest) of its fabric.
    pub fabric: u64,
    /// The [cookie](ultima_planner::program::Program::cookie) of its program.
    pub program: u64,
}
