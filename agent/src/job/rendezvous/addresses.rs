//! A rendezvous of ranks that know each other's addresses.

use std::net::{SocketAddr, SocketAddrV4};

use super::super::JobError;
use super::exchange::{Member, bind, meet_at};
use super::server::Server;
use super::store::{Advice, Client, Protocol, ipv6};
use super::{Place, Rendezvous, Request};
use crate::deadline::deadline;

/// A rendezvous of ranks that know each other's addresses. Rank 0 also listens on its address with TCP, until
/// all ranks have agreed on their settings.
#[derive(Clone, Debug)]
pub struct Addresses {
    rank: usize,
    addresses: Vec<SocketAddr>,
    run: Option<String>,
}

impl Addresses {
    /// Creates the rendezvous of `rank`. Addresses are in the order of ranks, this rank's included.
    pub fn new(rank: usize, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            rank,
            addresses: addresses.into_iter().collect(),
            run: None,
        }
    }

    /// Names the run. Ranks of a run with another name are refused.
    #[must_use]
    pub fn run(mut self, run: impl Into<String>) -> Self {
        self.run = Some(run.into());
        self
    }

    fn parse(&self) -> Result<(Member, Vec<SocketAddrV4>), JobError> {
        let member = member(self.rank, self.addresses.len(), "ultima".into())?;
        let mut addresses = Vec::new();
        for (rank, address) in self.addresses.iter().enumerate() {
            let what = format!("the address of rank {rank}");
            match address {
                SocketAddr::V4(address) if address.port() == 0 => {
                    return Err(JobError::Port { what });
                }
                SocketAddr::V4(address) => addresses.push(*address),
                SocketAddr::V6(address) => return Err(ipv6(&what, &address.to_string())),
            }
        }
        let member = Member {
            run: self.run.clone(),
            hosted: true,
            ..member
        };
        Ok((member, addresses))
    }
}

impl Rendezvous for Addresses {
    fn meet(self: Box<Self>, request: &Request) -> Result<Place, JobError> {
        let (member, addresses) = self.parse()?;
        let own = addresses[usize::from(member.rank)];
        let socket = bind(*own.ip(), own.port())?;
        let at = addresses[0];
        let server = match member.rank {
            0 => Some(serve(at)?),
            _ => None,
        };
        let (ip, port) = (at.ip().to_string(), at.port());
        let advice = Advice {
            absent: "Rank 0 listens there when it runs; check its log, the address, and that firewalls pass TCP",
            foreign: "Another program may hold the port: check rank 0's log, or choose another port for rank 0",
        };
        let until = deadline(request.timeout);
        let mut store =
            Client::connect(&ip, port, Some(Protocol::V2), until, advice, request.notice)?;
        let place = meet_at(&mut store, &member, request, socket);
        drop(server);
        place
    }
}

/// Starts the store of rank 0 on `address`.
pub(super) fn serve(address: SocketAddrV4) -> Result<Server, JobError> {
    Server::bind(address).map_err(|error| JobError::Socket {
        what: "TCP",
        address,
        error,
    })
}

/// Checks a rank and the number of ranks.
pub(super) fn member(rank: usize, ranks: usize, prefix: String) -> Result<Member, JobError> {
    let wrong = JobError::Rank { rank, ranks };
    match (u16::try_from(rank), u16::try_from(ranks)) {
        (Ok(rank), Ok(ranks)) if ranks >= 2 && rank < ranks => Ok(Member {
            rank,
            ranks,
            prefix,
            run: None,
            hosted: false,
        }),
        _ => Err(wrong),
    }
}
