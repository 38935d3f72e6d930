//! The rendezvous: before the first operation, every rank receives packets from every other.
//!
//! When all ranks have joined, their sockets are open, but packets may still be lost: the kernel repeats a
//! lost ARP request after a second, and a link that just came up may drop packets. An operation's losses to
//! that would count as the network's.

use std::thread::sleep;
use std::time::{Duration, Instant};

use ultima_host::{CheckPacket, Destination, OperationId, Prober, Stopped};

/// Long enough for three ARP requests.
pub const RENDEZVOUS: Duration = Duration::from_secs(3);

/// The first pause between two packets to one rank. Each is twice the one before, so that many ranks at once
/// do not fill a switch's input queue.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The token of "I am here". The controller draws its rounds' tokens from all 2^32, so a collision with these
/// three is improbable; a check would then count a few packets too many.
const HERE: u32 = u32::MAX;
/// The token of "I receive packets from all of you".
const HEARING: u32 = u32::MAX - 1;
/// The token of the same, from a rank that waits for no other any more.
const MET: u32 = u32::MAX - 2;

/// Exchanges packets with all other ranks until each has reported that it receives from all, for at most
/// `bound`; blocks. Returns the ranks without packets or without that report; empty on success.
///
/// All ranks call this at about the same time, before their first operation.
///
/// # Errors
/// [`Stopped`].
pub fn meet(prober: &Prober, rank: u16, ranks: u16, bound: Duration) -> Result<Vec<u16>, Stopped> {
    let others = || (0..ranks).filter(move |&other| other != rank);
    let send = |token| {
        let packet = |to| CheckPacket {
            to: Destination::Rank(to),
            probe: false,
            about: OperationId::default(),
            token,
            payload: 0,
        };
        prober.send(others().map(packet).collect())
    };
    let heard = |token| -> Result<Vec<u16>, Stopped> {
        let (heard, _) = prober.heard(token)?;
        Ok(heard.ranks.iter().map(|heard| heard.source).collect())
    };
    let end = Instant::now() + bound;
    let mut pause = FIRST_PAUSE;
    // Not a retry: each round sends the state that the packets received meanwhile have led to.
    loop {
        let mut hearing = heard(HEARING)?;
        hearing.extend(heard(MET)?);
        let here = heard(HERE)?;
        let silent = others().filter(|other| !here.contains(other) && !hearing.contains(other));
        let silent: Vec<u16> = silent.collect();
        send(if silent.is_empty() { HEARING } else { HERE })?;
        if others().all(|other| hearing.contains(&other)) {
            // A rank that has missed this asks again.
            prober.answer(vec![HERE, HEARING], MET)?;
            return Ok(Vec::new());
        }
        let now = Instant::now();
        if now >= end {
            return Ok(match silent.is_empty() {
                true => others().filter(|other| !hearing.contains(other)).collect(),
                false => silent,
            });
        }
        sleep(pause.min(end - now));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
