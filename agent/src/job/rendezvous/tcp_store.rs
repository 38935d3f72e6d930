//! A rendezvous at a `torch.distributed` TCPStore.

use std::io::ErrorKind;

use super::super::JobError;
use super::super::env::Variables;
use super::addresses::member;
use super::exchange::{Member, bind, meet_at};
use super::server::Server;
use super::store::{Advice, Client, Protocol, resolve};
use super::{Place, Rendezvous, Request};
use crate::deadline::deadline;

/// The advice if torch serves the store.
const JOINS: Advice = Advice {
    absent: "torchrun's agent serves a store, or rank 0's init_process_group, which must come before the job; \
             without torch, set ULTIMA_STORE=host on all ranks",
    foreign: "Another program may hold the port: choose another MASTER_PORT, or set ULTIMA_STORE_PROTOCOL to 1 \
              (torch 1.13 and 2.0) or 2 (torch 2.1 and later)",
};

/// The advice if rank 0 serves the store.
const HOSTS: Advice = Advice {
    absent: "Rank 0 serves the store there, and did not start: start it, check its log, MASTER_ADDR and \
             MASTER_PORT, and that firewalls pass TCP",
    foreign: "Another program may hold the port: choose another MASTER_PORT",
};

/// A rendezvous at a `torch.distributed` TCPStore: torchrun's, that of rank 0's process group, or one that
/// rank 0 serves itself.
#[derive(Clone, Debug)]
pub struct TcpStore {
    host: String,
    port: u16,
    rank: usize,
    ranks: usize,
    run: String,
    generation: String,
    protocol: Option<Protocol>,
    hosts: bool,
}

impl TcpStore {
    /// Creates the rendezvous of `rank`, of `ranks` in all, at the store at `host:port`.
    pub fn new(host: impl Into<String>, port: u16, rank: usize, ranks: usize) -> Self {
        Self {
            host: host.into(),
            port,
            rank,
            ranks,
            run: "default".into(),
            generation: "0".into(),
            protocol: None,
            hosts: false,
        }
    }

    /// Reads torchrun's variables: `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE`, and if they are there
    /// `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT`. `ULTIMA_STORE=host` is [`TcpStore::host`],
    /// `ULTIMA_STORE_PROTOCOL` (1 or 2) is [`TcpStore::protocol`].
    ///
    /// # Errors
    /// [`JobError::Variable`].
    pub fn from_env() -> Result<Self, JobError> {
        Self::from_variables(&Variables::of_process())
    }

    pub(in super::super) fn from_variables(variables: &Variables<'_>) -> Result<Self, JobError> {
        const NUMBER: &str = "expected a number";
        let host = variables.required("MASTER_ADDR", "expected rank 0's host")?;
        let port = variables.required_number("MASTER_PORT", "expected a TCP port")?;
        let rank = variables.required_number("RANK", NUMBER)?;
        let ranks = variables.required_number("WORLD_SIZE", NUMBER)?;
        let mut store = Self::new(host, port, rank, ranks);
        if let Some(run) = variables.get("TORCHELASTIC_RUN_ID") {
            store.run = run;
        }
        if let Some(generation) = variables.get("TORCHELASTIC_RESTART_COUNT") {
            store.generation = generation;
        }
        store.protocol = variables.parsed("ULTIMA_STORE_PROTOCOL")?;
        store.hosts = match variables.get("ULTIMA_STORE").as_deref() {
            None | Some("join") => false,
            Some("host") => true,
            Some(other) => {
                return Err(JobError::Variable {
                    name: "ULTIMA_STORE",
                    problem: format!(
                        "is {other:?}: expected \"join\" (torch serves the store) or \"host\" (rank 0 does)"
                    ),
                });
            }
        };
        Ok(store)
    }

    /// Has rank 0 serve the store, unless its port is in use: then that is the store.
    #[must_use]
    pub fn host(mut self) -> Self {
        self.hosts = true;
        self
    }

    /// Sets the protocol's version instead of detecting it.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Names the run and its generation: jobs of different ones do not meet at a store.
    #[must_use]
    pub fn run(mut self, run: impl Into<String>, generation: u64) -> Self {
        self.run = run.into();
        self.generation = generation.to_string();
        self
    }

    /// Serves the store on rank 0, if that is wanted and nothing else serves it.
    fn serve(&self) -> Result<Option<Server>, JobError> {
        if !self.hosts || self.rank > 0 {
            return Ok(None);
        }
        let address = resolve("MASTER_ADDR", &self.host, self.port)?;
        match Server::bind(address) {
            Ok(server) => Ok(Some(server)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(JobError::Socket {
                what: "TCP",
                address,
                error,
            }),
        }
    }
}

impl Rendezvous for TcpStore {
    fn meet(self: Box<Self>, request: &Request) -> Result<Place, JobError> {
        let prefix = format!("ultima/{}/{}", self.run, self.generation);
        let member = member(self.rank, self.ranks, prefix)?;
        if self.port == 0 {
            let what = "the rendezvous store (MASTER_PORT)".into();
            return Err(JobError::Port { what });
        }
        let server = self.serve()?;
        let member = Member {
            hosted: server.is_some(),
            ..member
        };
        let until = deadline(request.timeout);
        let advice = if self.hosts { HOSTS } else { JOINS };
        let mut store = Client::connect(
            &self.host,
            self.port,
            self.protocol,
            until,
            advice,
            request.notice,
        )?;
        let ip = request.local.address(store.address())?;
        let socket = bind(ip, 0)?;
        let place = meet_at(&mut store, &member, request, socket);
        drop(server);
        place
    }
}
