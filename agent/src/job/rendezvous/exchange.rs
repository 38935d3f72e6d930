//! The exchange of addresses and settings at a store.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ultima_host::{Collective, Config, Gather, UdpConfig};
use ultima_wire::{Key, UDP_PORT, group_address};

use super::super::error::Refusal;
use super::super::{JobError, interface};
use super::store::ipv6;
use super::{Place, Request, Store};
use crate::deadline::deadline;
use crate::fingerprint::{Chosen, Fingerprint};
use crate::limits::{headers, largest_slot};
use crate::{RENDEZVOUS, meet};

/// The job's number in packets. Without a controller, only epochs distinguish jobs.
const JOB: u16 = 1;
/// The time by which the others wait longer than rank 0, so that rank 0's reason reaches them.
const GRACE: Duration = Duration::from_secs(5);
/// The time for which rank 0 serves its store to ranks that may have stopped.
const FAREWELL: Duration = Duration::from_secs(5);

/// A rank at a store.
#[derive(Clone, Debug)]
pub struct Member {
    /// This rank.
    pub rank: u16,
    /// Ranks of the job.
    pub ranks: u16,
    /// The prefix of all keys of this job.
    pub prefix: String,
    /// The name of the run. Ranks of different runs refuse each other.
    pub run: Option<String>,
    /// True if the store ends with rank 0's call: then rank 0 waits until all have read. After a refusal it always
    /// does, because its process may serve the store and end with the error.
    pub hosted: bool,
}

/// A rank's entry at the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) address: SocketAddrV4,
    pub(super) mtu: u32,
    /// SO_RCVBUF as read.
    pub(super) receive_buffer: usize,
    pub(super) fingerprint: Fingerprint,
}

/// Rank 0's answer at the store.
#[derive(Debug, Serialize, Deserialize)]
struct Agreed<T> {
    /// Rank 0's settings.
    fingerprint: Fingerprint,
    result: Result<T, Refusal>,
}

/// Rank 0's choices for all ranks. It has no `Debug`, because it holds a secret.
#[derive(Clone, Serialize, Deserialize)]
struct Roster {
    /// The random number of this run.
    run: u64,
    seed: u64,
    /// The key of a sealed job.
    key: Option<[u8; 16]>,
    slot_bytes: usize,
    addresses: Vec<SocketAddrV4>,
    fingerprint: Fingerprint,
}

/// Meets the other ranks at `store`, with the bound UDP `socket` of this rank.
///
/// # Errors
/// [`JobError`]: ranks are missing, differ in a setting, or do not receive each other's packets.
pub fn meet_at(
    store: &mut dyn Store,
    member: &Member,
    request: &Request,
    socket: UdpSocket,
) -> Result<Place, JobError> {
    let Member { rank, ranks, .. } = *member;
    let until = deadline(request.timeout);
    let address = local_address(&socket)?;
    // Drawn by the system's generator. All use rank 0's.
    let key = request.seal.then(|| Key(rand::random()));
    let config = configure(request, member, 1, request.seed.unwrap_or(0), key);
    config.validate().map_err(ultima_host::Error::from)?;
    let chosen = Chosen {
        seed: request.seed,
        slot_bytes: request.settings.slot_bytes,
        run: member.run.as_deref(),
    };
    let offer = Offer {
        address,
        mtu: interface::mtu(*address.ip()),
        receive_buffer: receive_buffer(&socket, ranks)?,
        fingerprint: Fingerprint::new(&config, &chosen),
    };
    let roster: Roster = agree(store, member, request.timeout, offer, |offers| {
        roster(member, request, key, &offers)
    })?;
    let epoch = roster.fingerprint.epoch(roster.run);
    let config = configure(request, member, epoch, roster.seed, roster.key.map(Key));
    let colocated = |other: &u16| {
        let other_address = roster.addresses.get(usize::from(*other));
        *other != rank && other_address.is_some_and(|other| other.ip() == address.ip())
    };
    let config = Config {
        slot_bytes: roster.slot_bytes,
        colocated: (0..ranks).filter(colocated).collect(),
        ..config
    };
    let udp = UdpConfig {
        socket,
        peers: roster.addresses.clone(),
        group: SocketAddrV4::new(group_address(JOB), UDP_PORT),
    };
    let collective = Collective::over_udp(config, udp)?;
    hear_all(&collective, &roster.addresses, until)?;
    Ok(Place::fixed(collective, address))
}

/// Waits until packets of all ranks have arrived, whose `addresses` are by rank. All ranks have agreed by about now.
pub(super) fn hear_all(
    collective: &Collective,
    addresses: &[SocketAddrV4],
    until: Instant,
) -> Result<(), JobError> {
    let Config { rank, ranks, .. } = *collective.config();
    let left = until.saturating_duration_since(Instant::now());
    let bound = left.clamp(RENDEZVOUS, 10 * RENDEZVOUS);
    let silent = meet(&collective.prober(), rank, ranks, bound);
    let silent = silent.map_err(|stopped| JobError::Ended(stopped.to_string()))?;
    if silent.is_empty() {
        return Ok(());
    }
    let address = |rank: u16| (rank, addresses[usize::from(rank)]);
    Err(JobError::Unreachable {
        ranks: silent.into_iter().map(address).collect(),
        waited: bound,
    })
}

/// The names of values at the store.
struct Keys {
    prefix: String,
}

impl Keys {
    fn offer(&self, rank: u16) -> String {
        format!("{}/rank/{rank}", self.prefix)
    }

    fn agreed(&self) -> String {
        format!("{}/ranks", self.prefix)
    }

    fn done(&self, rank: u16) -> String {
        format!("{}/done/{rank}", self.prefix)
    }
}

/// Leaves `offer` at the store and returns what rank 0 makes of all offers with `decide`.
///
/// # Errors
/// [`JobError::Refused`] on every rank, if settings differ, ranks are missing or `decide` refuses.
pub(super) fn agree<T: Serialize + DeserializeOwned>(
    store: &mut dyn Store,
    member: &Member,
    timeout: Duration,
    offer: Offer,
    decide: impl FnOnce(Vec<Offer>) -> Result<T, Refusal>,
) -> Result<T, JobError> {
    let Member { rank, ranks, .. } = *member;
    let until = deadline(timeout);
    // A rank that meets the others again does so as often as they do.
    let attempt = store.count(&format!("{}/attempts/{rank}", member.prefix))?;
    let keys = Keys {
        prefix: format!("{}/{attempt}", member.prefix),
    };
    if rank > 0 {
        write(store, &keys.offer(rank), &offer)?;
        let agreed: Option<Agreed<T>> = read(store, &keys.agreed(), until + GRACE)?;
        let agreed = agreed.ok_or(Refusal::NoRoster {
            waited: timeout.saturating_add(GRACE),
        })?;
        store.set(&keys.done(rank), b"1")?;
        let Agreed {
            fingerprint,
            result,
        } = agreed;
        // Rank 0 does not read offers of ranks beyond its own number of ranks.
        fingerprint.check(rank, &offer.fingerprint)?;
        return Ok(result?);
    }
    let fingerprint = offer.fingerprint.clone();
    let result = gather(store, &keys, ranks, timeout, offer, until)?.and_then(decide);
    let agreed = Agreed {
        fingerprint,
        result,
    };
    write(store, &keys.agreed(), &agreed)?;
    if member.hosted || agreed.result.is_err() {
        let missing = match &agreed.result {
            Err(Refusal::Missing { missing, .. }) => &missing[..],
            _ => &[],
        };
        let farewell = deadline(FAREWELL);
        for other in (1..ranks).filter(|other| !missing.contains(other)) {
            store.get(&keys.done(other), farewell)?;
        }
    }
    Ok(agreed.result?)
}

/// Reads all ranks' offers, and compares their settings with `own`, which are rank 0's.
fn gather(
    store: &mut dyn Store,
    keys: &Keys,
    ranks: u16,
    timeout: Duration,
    own: Offer,
    until: Instant,
) -> Result<Result<Vec<Offer>, Refusal>, JobError> {
    let mut offers = vec![own];
    let mut missing = Vec::new();
    for rank in 1..ranks {
        let Some(offer) = read::<Offer>(store, &keys.offer(rank), until)? else {
            missing.push(rank);
            continue;
        };
        if let Err(refusal) = offers[0].fingerprint.check(rank, &offer.fingerprint) {
            return Ok(Err(refusal));
        }
        offers.push(offer);
    }
    match missing.is_empty() {
        true => Ok(Ok(offers)),
        false => Ok(Err(Refusal::Missing {
            missing,
            ranks,
            waited: timeout,
        })),
    }
}

/// Rank 0's choices, from all ranks' offers.
fn roster(
    member: &Member,
    request: &Request,
    key: Option<Key>,
    offers: &[Offer],
) -> Result<Roster, Refusal> {
    let is_loopback = |offer: &Offer| offer.address.ip().is_loopback();
    let first = |wanted| (0..).zip(offers).find(|(_, o)| is_loopback(o) == wanted);
    if let (Some((rank, offer)), Some((other, _))) = (first(true), first(false)) {
        return Err(Refusal::Loopback {
            rank,
            address: offer.address,
            other,
        });
    }
    let seed = request.seed.unwrap_or_else(rand::random);
    let config = configure(request, member, 1, seed, key);
    let slot_bytes = (request.settings.slot_bytes).unwrap_or_else(|| slot(&config, offers));
    check_mtus(&config, slot_bytes, offers)?;
    let chosen = Chosen {
        seed: Some(seed),
        slot_bytes: Some(slot_bytes),
        run: member.run.as_deref(),
    };
    Ok(Roster {
        run: rand::random(),
        seed,
        key: key.map(|Key(key)| key),
        slot_bytes,
        addresses: offers.iter().map(|offer| offer.address).collect(),
        fingerprint: Fingerprint::new(&config, &chosen),
    })
}

/// The largest slot that fits all ranks' interfaces and socket buffers.
fn slot(config: &Config, offers: &[Offer]) -> usize {
    let mtu = offers.iter().map(|offer| offer.mtu).min();
    let buffer = offers.iter().map(|offer| offer.receive_buffer).min();
    largest_slot(config, mtu.unwrap_or(0), buffer.unwrap_or(0))
}

/// Compares a job's longest packets with all ranks' MTUs: longer ones would be lost.
pub(super) fn check_mtus(
    config: &Config,
    slot_bytes: usize,
    offers: &[Offer],
) -> Result<(), Refusal> {
    let packet = headers(config) + slot_bytes;
    let smallest = (0..).zip(offers).min_by_key(|(_, offer)| offer.mtu);
    match smallest.map(|(rank, offer)| (rank, offer.mtu)) {
        Some((rank, mtu)) if packet > mtu as usize => Err(Refusal::Slot {
            rank,
            mtu,
            slot_bytes,
            packet,
            most: (mtu as usize).saturating_sub(headers(config)) / 4 * 4,
        }),
        _ => Ok(()),
    }
}

/// The configuration of `member`, but for its slot size.
fn configure(
    request: &Request,
    member: &Member,
    epoch: u16,
    seed: u64,
    key: Option<Key>,
) -> Config {
    let Member { rank, ranks, .. } = *member;
    let t_b = request.settings.t_b;
    let config = Config {
        gather: Gather::Unicast,
        key,
        ..Config::new(JOB, epoch, rank, ranks, seed, t_b)
    };
    request.settings.apply(config)
}

fn local_address(socket: &UdpSocket) -> Result<SocketAddrV4, JobError> {
    match socket.local_addr() {
        Ok(SocketAddr::V4(address)) => Ok(address),
        Ok(SocketAddr::V6(address)) => Err(ipv6("this rank's socket", &address.ip().to_string())),
        Err(error) => Err(JobError::Io {
            what: "read the socket's address",
            error,
        }),
    }
}

/// Bytes of the receive buffers that the collective will have.
fn receive_buffer(socket: &UdpSocket, ranks: u16) -> Result<usize, JobError> {
    UdpConfig::receive_buffer(socket, ranks).map_err(|error| ultima_host::Error::from(error).into())
}

/// Opens a rank's UDP socket.
pub(super) fn bind(ip: Ipv4Addr, port: u16) -> Result<UdpSocket, JobError> {
    let address = SocketAddrV4::new(ip, port);
    UdpSocket::bind(address).map_err(|error| JobError::Socket {
        what: "UDP",
        address,
        error,
    })
}

fn write<T: Serialize>(store: &mut dyn Store, key: &str, value: &T) -> Result<(), JobError> {
    let json = serde_json::to_vec(value).map_err(|error| JobError::Store {
        address: key.to_owned(),
        problem: error.to_string(),
    })?;
    store.set(key, &json)
}

fn read<T: DeserializeOwned>(
    store: &mut dyn Store,
    key: &str,
    until: Instant,
) -> Result<Option<T>, JobError> {
    let Some(json) = store.get(key, until)? else {
        return Ok(None);
    };
    let value = serde_json::from_slice(&json).map_err(|error| JobError::Store {
        address: key.to_owned(),
        problem: format!(
            "the value is not of this version of Ultima: {error}; use one version on all ranks"
        ),
    })?;
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;
    use crate::Settings;
    use crate::job::rendezvous::Local;

    fn offer(ip: Ipv4Addr, mtu: u32, receive_buffer: usize) -> Offer {
        let config = Config::new(JOB, 1, 0, 4, 7, Duration::from_secs(1));
        Offer {
            address: SocketAddrV4::new(ip, 5000),
            mtu,
            receive_buffer,
            fingerprint: Fingerprint::new(&config, &Chosen::default()),
        }
    }

    #[test]
    fn slots_fit_every_mtu_and_every_buffer() {
        let ip = Ipv4Addr::LOCALHOST;
        let slot_of = |ranks, offers: &[(u32, usize)]| {
            let config = Config::new(JOB, 1, 0, ranks, 7, Duration::from_secs(1));
            let offers: Vec<Offer> = (offers.iter())
                .map(|(mtu, buffer)| offer(ip, *mtu, *buffer))
                .collect();
            let slot_bytes = slot(&config, &offers);
            let config = Config {
                slot_bytes,
                ..config
            };
            assert_eq!(config.validate(), Ok(()));
            assert!(
                offers
                    .iter()
                    .all(|o| headers(&config) + slot_bytes <= o.mtu as usize)
            );
            slot_bytes
        };
        // Linux's default limit, as SO_RCVBUF reads.
        const USUAL: usize = 2 * 212_992;
        const LARGE: usize = 16 << 20;
        assert_eq!(slot_of(4, &[(65_536, USUAL), (65_536, USUAL)]), 15_808);
        assert_eq!(slot_of(4, &[(65_536, LARGE)]), 32_192);
        assert_eq!(slot_of(4, &[(9000, LARGE), (9000, LARGE)]), 7616);
        assert_eq!(slot_of(4, &[(9000, LARGE), (4500, LARGE)]), 3520);
        assert_eq!(slot_of(4, &[(1500, LARGE), (9000, LARGE)]), 1420);
        assert_eq!(slot_of(4, &[(576, USUAL)]), 496);
        // Four packets from each other rank.
        assert_eq!(slot_of(12, &[(65_536, USUAL)]), 3520);
        assert_eq!(slot_of(64, &[(65_536, USUAL)]), 1484);
        assert_eq!(slot_of(64, &[(65_536, LARGE)]), 32_192);
    }

    #[test]
    fn slots_that_an_mtu_does_not_carry_are_refused() {
        let config = Config::new(JOB, 1, 0, 3, 7, Duration::from_secs(1));
        let offers = [9000, 1500, 1600].map(|mtu| offer(Ipv4Addr::LOCALHOST, mtu, 1 << 20));
        let most = 1500 - headers(&config);
        assert_eq!(check_mtus(&config, most, &offers), Ok(()));
        let error = check_mtus(&config, 4096, &offers).unwrap_err().to_string();
        assert!(
            error.contains("rank 1's interface has an MTU of 1500"),
            "{error}"
        );
        assert!(error.contains(&format!("at most {most},")), "{error}");
    }

    /// A store in this process.
    #[derive(Default)]
    struct Stored(BTreeMap<String, Vec<u8>>);

    impl Store for Arc<Mutex<Stored>> {
        fn set(&mut self, key: &str, value: &[u8]) -> Result<(), JobError> {
            let mut stored = self.lock().expect("no panic");
            stored.0.insert(key.to_owned(), value.to_vec());
            Ok(())
        }

        fn get(&mut self, key: &str, deadline: Instant) -> Result<Option<Vec<u8>>, JobError> {
            loop {
                let value = self.lock().expect("no panic").0.get(key).cloned();
                if value.is_some() || Instant::now() >= deadline {
                    return Ok(value);
                }
                thread::yield_now();
            }
        }

        fn count(&mut self, _: &str) -> Result<i64, JobError> {
            Ok(1)
        }
    }

    #[test]
    fn rank_0_does_not_end_before_the_others_have_read_its_refusal() {
        let store = Arc::<Mutex<Stored>>::default();
        let errors = thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| {
                let mut store = store.clone();
                scope.spawn(move || {
                    let member = Member {
                        rank,
                        ranks: 2,
                        prefix: "job".into(),
                        run: None,
                        hosted: false,
                    };
                    let config = Config::new(JOB, 1, rank, 2, 7, Duration::from_secs(1));
                    let chosen = Chosen {
                        seed: Some(u64::from(rank)),
                        ..Chosen::default()
                    };
                    let offer = Offer {
                        fingerprint: Fingerprint::new(&config, &chosen),
                        ..offer(Ipv4Addr::LOCALHOST, 1500, 1 << 20)
                    };
                    let agreed = agree(&mut store, &member, FAREWELL, offer, |_| Ok(()));
                    let has_read = store
                        .lock()
                        .expect("no panic")
                        .0
                        .contains_key("job/1/done/1");
                    assert!(has_read, "rank {rank}");
                    agreed.expect_err("a refusal").to_string()
                })
            });
            ranks.map(|rank| rank.join().expect("no panic"))
        });
        for error in errors {
            assert!(
                error.starts_with("rank 1 has seed 1, rank 0 has 0"),
                "{error}"
            );
        }
    }

    #[test]
    fn loopback_addresses_do_not_reach_other_hosts() {
        let member = Member {
            rank: 0,
            ranks: 2,
            prefix: String::new(),
            run: None,
            hosted: false,
        };
        let request = Request {
            settings: Settings::new(Duration::from_secs(1)),
            seed: None,
            seal: true,
            local: Local::Routed,
            timeout: Duration::from_secs(1),
            ranks: None,
            notice: |_| {},
        };
        let of = |ips: [Ipv4Addr; 2]| {
            let offers = ips.map(|ip| offer(ip, 1500, 1 << 20));
            roster(&member, &request, None, &offers)
        };
        let (here, there) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 2));
        assert!(of([here, here]).is_ok() && of([there, there]).is_ok());
        let error = of([here, there]).err().expect("an error").to_string();
        assert!(
            error.contains("rank 0 has the loopback address 127.0.0.1:5000"),
            "{error}"
        );
    }
}
