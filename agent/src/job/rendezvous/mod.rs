//! Rendezvous: the ranks of a job find each other, and agree on their settings before the first operation.
//!
//! | | the ranks know | they meet at |
//! | --- | --- | --- |
//! | [`Addresses`] | each other's addresses | rank 0's address, over TCP |
//! | [`TcpStore`] | one address (`MASTER_ADDR`) | torch's store, or one that rank 0 serves |
//! | [`Controller`] | the controller and the job's name | the controller |
//!
//! The first two use a [`Store`]: every rank leaves its address, MTU, receive buffer and settings there.
//! Rank 0 compares the settings with its own, chooses seed, slot size, key and the number of the run, and
//! leaves the list of ranks, or the reason that there is none.

mod addresses;
mod controller;
mod exchange;
mod notices;
mod server;
mod store;
mod tcp_store;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use ultima_host::{Collective, Report};

use super::{JobError, interface};
use crate::Settings;

pub use addresses::Addresses;
pub use controller::Controller;
pub use exchange::{Member, meet_at};
pub use store::{Protocol, Store};
pub use tcp_store::TcpStore;

use controller::Managed;

/// A user's settings of a rank's job.
#[derive(Clone, Debug)]
pub struct Request {
    /// The settings. A slot size of `None` is the largest that all ranks' interfaces and buffers take.
    pub settings: Settings,
    /// The seed of signs and rotations. Rank 0 draws one if it has none.
    pub seed: Option<u64>,
    /// True if packets are sealed, with a key that rank 0 draws. A controller decides by itself.
    pub seal: bool,
    /// The address or interface for packets.
    pub local: Local,
    /// The time to wait for other ranks.
    pub timeout: Duration,
    /// The number of ranks that the caller expects of a controller's job. None for any.
    pub ranks: Option<usize>,
    /// Reports why the rendezvous waits.
    pub notice: fn(&str),
}

/// The local address for a rank's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Local {
    /// The address that routes to the rendezvous.
    #[default]
    Routed,
    /// This one.
    Address(Ipv4Addr),
    /// The first one of an interface.
    Interface(String),
}

impl Local {
    /// The address, for a rendezvous at `peer`.
    ///
    /// # Errors
    /// [`JobError::Interface`], [`JobError::Io`].
    pub fn address(&self, peer: SocketAddrV4) -> Result<Ipv4Addr, JobError> {
        match self {
            Local::Routed => interface::towards(peer),
            Local::Address(ip) => Ok(*ip),
            Local::Interface(name) => interface::address_of(name),
        }
    }
}

/// Brings the ranks of a job together.
pub trait Rendezvous: Send {
    /// Meets all other ranks, and returns this rank's place among them. Blocks for at most about
    /// [`Request::timeout`].
    ///
    /// # Errors
    /// [`JobError`]: ranks are missing, or differ in a setting.
    fn meet(self: Box<Self>, request: &Request) -> Result<Place, JobError>;
}

/// A rank's place in a job that is ready for its first operation.
pub struct Place {
    members: Members,
    address: SocketAddrV4,
    first_step: u32,
}

enum Members {
    /// They stay as they are.
    Fixed(Box<Collective>),
    /// A controller may change them.
    Managed(Box<Managed>),
}

impl Place {
    /// A rank whose job has the same members until its end. `address` is the rank's own.
    pub fn fixed(collective: Collective, address: SocketAddrV4) -> Self {
        Self {
            members: Members::Fixed(Box::new(collective)),
            address,
            first_step: 0,
        }
    }

    /// The rank's address.
    pub(super) fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// The first step that this rank takes part in.
    pub(super) fn first_step(&self) -> u32 {
        self.first_step
    }

    pub(super) fn collective(&mut self) -> &mut Collective {
        match &mut self.members {
            Members::Fixed(collective) => collective,
            Members::Managed(managed) => managed.member().collective(),
        }
    }

    /// Called before the first operation of each step, when none is in progress. Returns true if this rank has
    /// another collective from then on.
    pub(super) fn enter(&mut self, step: u32) -> Result<bool, String> {
        match &mut self.members {
            Members::Fixed(_) => Ok(false),
            Members::Managed(managed) => managed.enter(step),
        }
    }

    /// Reports ranks that are silent to the controller, if there is one.
    pub(super) fn suspect(&mut self, ranks: &[u16]) {
        if let Members::Managed(managed) = &mut self.members {
            managed.member().suspect(ranks);
        }
    }

    /// Receives for `linger`, then leaves the job.
    pub(super) fn finish(self, linger: Duration) -> Result<Report, JobError> {
        match self.members {
            Members::Fixed(collective) => Ok(collective.finish(linger)?),
            Members::Managed(managed) => managed.finish(linger),
        }
    }
}
