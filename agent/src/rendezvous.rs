//! Before the first operation: every rank hears every other.
//!
//! That all have joined says that their sockets are open, not that packets pass: neighbours may not be resolved yet (the
//! kernel asks for a lost ARP answer again after a second), and a link that just came up may still drop what is sent.
//! What an operation lost to that would count as the network's loss.

use std::thread::sleep;
use std::time::{Duration, Instant};

use ultima_host::{CheckPacket, Destination, OperationId, Prober, Stopped};

/// Long enough for three ARP requests.
pub const RENDEZVOUS: Duration = Duration::from_secs(3);

/// The first pause between two packets to one rank; each is twice the one before, so that many ranks at once do not
/// fill a switch's input.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// And the longest.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The token of "I am here". The controller draws those of its rounds from all 2^32, and so takes one of these two as
/// good as never; then a check is off by a few packets.
const HERE: u32 = u32::MAX;
/// The token of "I hear all of you".
const HEARING: u32 = u32::MAX - 1;

/// Exchanges packets with all other ranks until each is known to hear all, at most for `bound`; blocks. Returns the
/// ranks that were not heard, or did not say that they hear all; none is as it should be.
///
/// All ranks do this at about the same time, before their first operation.
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
    loop {
        let hearing = heard(HEARING)?;
        let here = heard(HERE)?;
        let silent = others().filter(|other| !here.contains(other) && !hearing.contains(other));
        let silent: Vec<u16> = silent.collect();
        send(if silent.is_empty() { HEARING } else { HERE })?;
        if others().all(|other| hearing.contains(&other)) {
            // Once more: whoever misses it waits in vain.
            send(HEARING)?;
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
