//! What the first switch still knows of an operation.

use std::thread::sleep;
use std::time::{Duration, Instant};

use ultima_host::{CheckPacket, Destination, OperationId, Prober, Stopped};
use ultima_wire::Report;

/// PROBEs until nobody is expected to answer, and the time from one to the next: far longer than the round trip to
/// a switch.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);
/// How often it is looked whether an answer has come.
const LOOK: Duration = Duration::from_micros(500);

/// The token of these PROBEs, next to the rendezvous's.
const TOKEN: u32 = u32::MAX - 2;

/// Asks the switch beside this host what it counted of an operation: of what left its port toward here, and of what it
/// missed of this rank's packets. Blocks for 60 ms at most; none if no answer came by then.
///
/// A switch remembers the latest 16 operations. `elsewhere` is a rank on another host: the PROBE is addressed to it, and
/// comes back from the switch.
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
                // Nothing yet, or what was asked before.
                _ => {}
            }
        }
    }
    Ok(None)
}
