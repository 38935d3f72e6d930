//! A rank's membership in a job, as the controller assigned it.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ultima_api::MacAddr;
use ultima_api::client::{Client, ClientError};
use ultima_api::v1::{self as api, Attendance, JoinResponse, LeaveRequest};
use ultima_host::{Config, Gather, PortAddress, PortConfig, UdpConfig};
use ultima_wire::{Key, UDP_PORT, group_address};

use crate::Limits;
use crate::fingerprint::{Chosen, Fingerprint};
use crate::kernel::deaf_to_itself;

/// A rank's membership in a job, as the controller assigned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The job's name.
    pub job: String,
    /// The job's id in packets.
    pub id: u16,
    /// The job's membership epoch in packets.
    pub epoch: u16,
    /// This rank.
    pub rank: u16,
    /// The token of this rank's seat, which the member shows to the controller.
    pub token: Token,
    /// Seed of signs and rotations.
    pub seed: u64,
    /// Delivery of aggregates.
    pub gather: Gather,
    /// By how many packets of the same member the fabric may overtake a packet.
    pub reorder: u32,
    /// Key that seals the job's packets in this epoch. None if the job is not sealed.
    pub key: Option<Key>,
    /// The fabric's limits.
    pub limits: Limits,
    /// All members, by rank.
    pub seats: Vec<Seat>,
}

/// The token of a seat, which only its member and the controller know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u64);

/// Omits the token.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A member's host and address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The host's name.
    pub host: String,
    /// Its address with MAC and UDP port.
    pub address: PortAddress,
}

/// The reason that a rank could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The controller rejected the request, or did not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The controller's answer is invalid.
    #[error(
        "the controller's answer has {what}: {value}; use an agent and a controller of the same version"
    )]
    Answer {
        /// The invalid part.
        what: &'static str,
        /// Its value.
        value: String,
    },
}

/// The reason that a rank's socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The kernel rejected the address.
    #[error(
        "cannot listen on {address}: {error}; check that this machine has the address and that the port is free"
    )]
    Bind {
        /// The rank's address.
        address: SocketAddrV4,
        /// The kernel's error.
        error: io::Error,
    },
    /// Multicast packets of a rank return from the switch for colocated ranks, with the host's own address as
    /// their source, and the kernel drops them.
    #[error(
        "job {job} has {ranks} ranks at {ip}, and Linux drops packets from its own address on {interface}: \
         allow them with `sysctl -w net.ipv4.conf.{interface}.accept_local=1`, or create the job with `gather: unicast`"
    )]
    DeafToItself {
        /// The job's name.
        job: String,
        /// Number of ranks at the address.
        ranks: usize,
        /// The address.
        ip: Ipv4Addr,
        /// The interface with the address.
        interface: String,
    },
}

impl Membership {
    /// Takes the next free rank of `job` on `host`. With a `wait` it waits that long until all other ranks
    /// are taken.
    ///
    /// # Errors
    /// [`JoinError`]: no free rank, or no answer.
    pub async fn join(
        client: &Client,
        job: &str,
        host: &str,
        wait: Duration,
    ) -> Result<Self, JoinError> {
        let answer = client.join(job, host, wait).await?;
        Self::read(job, &answer)
    }

    pub(crate) fn read(job: &str, answer: &JoinResponse) -> Result<Self, JoinError> {
        let seats = answer
            .members
            .iter()
            .map(seat)
            .collect::<Result<Vec<_>, _>>()?;
        let rank = short("a rank", answer.rank)?;
        if usize::from(rank) >= seats.len() {
            return Err(JoinError::Answer {
                what: "a rank without a member",
                value: rank.to_string(),
            });
        }
        Ok(Self {
            job: job.to_owned(),
            id: short("a job's number", answer.job_id)?,
            epoch: short("an epoch", answer.epoch)?,
            rank,
            token: Token(answer.token),
            seed: answer.seed,
            gather: match answer.gather() {
                api::Gather::Unicast => Gather::Unicast,
                api::Gather::Multicast | api::Gather::Unspecified => Gather::Multicast,
            },
            reorder: answer.reorder,
            key: key(&answer.key)?,
            limits: answer.limits.as_ref().map(Limits::read).unwrap_or_default(),
            seats,
        })
    }

    /// The collective's configuration, with the defaults of [`Config::new`] for all that the controller does
    /// not set. Slots fit the fabric's links unless another change makes packets longer:
    /// [`Limits::slot_bytes`].
    pub fn config(&self, t_b: Duration) -> Config {
        // The controller never assigns more members than a rank's number allows.
        let ranks = u16::try_from(self.seats.len()).unwrap_or(u16::MAX);
        let host = self.seat().address.socket.ip();
        let colocated = (0..ranks).filter(|&rank| {
            let seat = &self.seats[usize::from(rank)];
            rank != self.rank && seat.address.socket.ip() == host
        });
        let colocated: Vec<u16> = colocated.collect();
        let config = Config {
            gather: self.gather,
            reorder: self.reorder,
            key: self.key,
            pacing: self.limits.pacing(colocated.len() as u64 + 1),
            colocated,
            ..Config::new(self.id, self.epoch, self.rank, ranks, self.seed, t_b)
        };
        Config {
            slot_bytes: self.limits.slot_bytes(&config),
            ..config
        }
    }

    /// A rank on another host, if there is one.
    pub fn elsewhere(&self) -> Option<u16> {
        let host = self.seat().address.socket.ip();
        let other = self
            .seats
            .iter()
            .position(|seat| seat.address.socket.ip() != host)?;
        u16::try_from(other).ok()
    }

    /// This rank's host and address.
    pub fn seat(&self) -> &Seat {
        &self.seats[usize::from(self.rank)]
    }

    /// Opens a socket on this rank's address, which must be an address of this machine.
    ///
    /// # Errors
    /// [`SocketError`]: the kernel rejects the address, or would drop packets of colocated ranks.
    pub fn udp(&self) -> Result<UdpConfig, SocketError> {
        let own = self.seat().address.socket;
        let socket = UdpSocket::bind(own).map_err(|error| SocketError::Bind {
            address: own,
            error,
        })?;
        let colocated = |seat: &&Seat| seat.address.socket.ip() == own.ip();
        let ranks = self.seats.iter().filter(colocated).count();
        if ranks > 1
            && self.gather == Gather::Multicast
            && let Some(interface) = deaf_to_itself(*own.ip())
        {
            return Err(SocketError::DeafToItself {
                job: self.job.clone(),
                ranks,
                ip: *own.ip(),
                interface,
            });
        }
        Ok(UdpConfig {
            socket,
            peers: self.seats.iter().map(|seat| seat.address.socket).collect(),
            group: self.group(),
        })
    }

    /// This rank's address behind a virtual switch port.
    pub fn port(&self, fd: OwnedFd) -> PortConfig {
        PortConfig {
            fd,
            local: self.seat().address,
            peers: self.seats.iter().map(|seat| seat.address).collect(),
            group: self.group(),
        }
    }

    /// The rank's identity and settings for [`Client::attend`].
    pub fn attendance(&self, config: &Config) -> Attendance {
        Attendance {
            job: self.job.clone(),
            epoch: self.epoch.into(),
            rank: self.rank.into(),
            slot_bytes: u32::try_from(config.slot_bytes).unwrap_or(u32::MAX),
            job_id: self.id.into(),
            token: self.token.0,
            settings: Fingerprint::new(config, &Chosen::default()).between_epochs(),
        }
    }

    /// The request to leave.
    pub(crate) fn leaving(&self) -> LeaveRequest {
        LeaveRequest {
            job: self.job.clone(),
            epoch: self.epoch.into(),
            rank: self.rank.into(),
            job_id: self.id.into(),
            token: self.token.0,
        }
    }

    fn group(&self) -> SocketAddrV4 {
        SocketAddrV4::new(group_address(self.id), UDP_PORT)
    }
}

fn seat(member: &api::Member) -> Result<Seat, JoinError> {
    let wrong = |what, value: &str| JoinError::Answer {
        what,
        value: value.to_owned(),
    };
    let mac: MacAddr = member
        .mac
        .parse()
        .map_err(|_| wrong("no MAC address", &member.mac))?;
    let ip: Ipv4Addr = member
        .ip
        .parse()
        .map_err(|_| wrong("no IPv4 address", &member.ip))?;
    Ok(Seat {
        host: member.host.clone(),
        address: PortAddress {
            mac: mac.0,
            socket: SocketAddrV4::new(ip, short("a UDP port", member.udp_port)?),
        },
    })
}

fn key(bytes: &[u8]) -> Result<Option<Key>, JoinError> {
    let key = match bytes {
        [] => return Ok(None),
        bytes => <[u8; 16]>::try_from(bytes),
    };
    match key {
        Ok(key) => Ok(Some(Key(key))),
        // The value is a secret, even if it is invalid.
        Err(_) => Err(JoinError::Answer {
            what: "a key that is not of 16 bytes, but of",
            value: bytes.len().to_string(),
        }),
    }
}

fn short(what: &'static str, value: u32) -> Result<u16, JoinError> {
    u16::try_from(value).map_err(|_| JoinError::Answer {
        what,
        value: value.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> JoinResponse {
        let member = |rank| api::Member {
            rank,
            host: format!("h{rank}"),
            mac: "02:00:00:00:00:01".into(),
            ip: "10.0.0.1".into(),
            udp_port: 21836 + rank,
            ..api::Member::default()
        };
        JoinResponse {
            rank: 1,
            job_id: 7,
            epoch: 1,
            reorder: 40,
            key: vec![7; 16],
            limits: Some(api::Limits {
                rate: 0,
                mtu: 576,
                pace: 2_000_000,
            }),
            members: vec![member(0), member(1)],
            ..JoinResponse::default()
        }
    }

    #[test]
    fn the_controllers_answer_is_checked() {
        let membership = Membership::read("train", &answer()).unwrap();
        assert_eq!(
            membership.seat().address.socket,
            "10.0.0.1:21837".parse().unwrap()
        );
        let config = membership.config(Duration::from_secs(1));
        assert_eq!((config.job, config.rank, config.ranks), (7, 1, 2));
        assert_eq!((&config.colocated, config.reorder), (&vec![0], 40));
        assert_eq!((config.key, config.slot_bytes), (Some(Key([7; 16])), 480));
        let pace = config.pacing.map(|pacing| pacing.bits_per_second);
        assert_eq!(pace, Some(2_000_000));
        assert!(!format!("{membership:?} {config:?}").contains("7, 7"));
        let unsealed = JoinResponse {
            key: Vec::new(),
            limits: None,
            ..answer()
        };
        let unsealed = Membership::read("train", &unsealed).unwrap();
        let config = unsealed.config(Duration::from_secs(1));
        assert_eq!((config.key, config.slot_bytes), (None, 1408));
        assert_eq!(membership.group(), "239.85.0.7:21836".parse().unwrap());

        let refused = |change: fn(&mut JoinResponse)| {
            let mut answer = answer();
            change(&mut answer);
            Membership::read("train", &answer).unwrap_err().to_string()
        };
        assert!(refused(|a| a.rank = 2).contains("without a member: 2"));
        assert!(refused(|a| a.job_id = 70_000).contains("70000"));
        assert!(refused(|a| a.members[0].ip = "h1".into()).contains("IPv4 address: h1"));
        assert!(refused(|a| a.key.truncate(15)).contains("not of 16 bytes, but of: 15"));
        assert!(refused(|a| a.members[1].mac = "x".into()).contains("MAC address: x"));
    }
}
