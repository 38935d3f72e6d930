//! The first switch's counters of an operation.

use std::thread::sleep;
use std::time::{Duration, Instant};

use ultima_host::{CheckPacket, Destination, OperationId, Prober, Stopped};
use ultima_wire::Report;

/// Number of PROBEs, and the time between them: much longer than the round trip to a switch.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);
/// Interval of checks for an answer.
const LOOK: Duration = Duration::from_micros(500);

/// The token of these PROBEs, next to the rendezvous's.
const TOKEN: u32 = u32::MAX - 3;

/// Requests the counters of an operation from this host's switch: packets that left its port to this host,
/// and packets of this rank that it missed. Blocks for up to 60 ms. None without an answer.
///
/// A switch stores the latest 16 operations. `elsewhere` is a rank on another host: the PROBE is addressed to
/// it, and returns from the switch.
///
/// # Errors
/// [`Stopped`].
pub fn ask(prober: &Prober, elsewhere: u16, about: OperationId) -> Result<Option<Report>, Stopped> {
    for _ in 0..TRIES {
        prober.send(vec![CheckPacket {
            to: Destination::Rank(elsewhere),
            probe: true,
            about,
            token: TOKEN,
            payload: 0,
        }])?;
        let end = Instant::now() + PAUSE;
        while Instant::now() < end {
            sleep(LOOK);
            match prober.heard(TOKEN)?.0.report {
                Some((operation, report)) if operation == about => return Ok(Some(report)),
                // No answer yet, or an answer to an earlier request.
                _ => {}
            }
        }
    }
    Ok(None)
}
