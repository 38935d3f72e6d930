//! The rate of each client's calls, which is bounded, so that one client leaves time for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tonic::Status;
use ultima_api::identity::Identity;

use super::lock::lock;

/// The time between two calls of a client in the long run: 500 calls a second.
const EACH: Duration = Duration::from_millis(2);
/// Calls that a client may make at once after a pause: the ranks of a large host join, attend and leave.
const AT_ONCE: u32 = 5000;
/// The most clients that are remembered.
const MOST: usize = 1 << 16;

/// For each client that called recently, the time at which its calls so far would end, one every [`EACH`]: the generic cell
/// rate algorithm (ITU-T I.371). Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CallRates(Arc<Mutex<HashMap<String, Instant>>>);

impl CallRates {
    /// Counts a call.
    ///
    /// # Errors
    /// The client calls too often.
    pub fn count(&self, client: &Identity, now: Instant) -> Result<(), Status> {
        let mut ends = lock(&self.0);
        if ends.len() >= MOST {
            ends.retain(|_, end| *end > now);
        }
        let client = client.to_string();
        let end = ends.get(&client).map_or(now, |end| now.max(*end)) + EACH;
        if end - now > EACH * AT_ONCE {
            return Err(Status::resource_exhausted(format!(
                "{client} makes more than {} calls a second; make fewer",
                Duration::from_secs(1).div_duration_f32(EACH)
            )));
        }
        if ends.len() < MOST || ends.contains_key(&client) {
            ends.insert(client, end);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_calls_too_often_is_refused_alone() {
        let (rates, now) = (CallRates::default(), Instant::now());
        let of = |name: &str| Identity::of_uri(&format!("spiffe://ultima/agent/{name}")).unwrap();
        let (eager, other) = (of("h1"), of("h2"));
        let calls = |client, now| {
            (0..)
                .take_while(|_| rates.count(client, now).is_ok())
                .count()
        };
        assert_eq!(calls(&eager, now), AT_ONCE as usize);
        let refused = rates.count(&eager, now).unwrap_err();
        let says = "agent h1 makes more than 500 calls a second; make fewer";
        assert_eq!(refused.message(), says);
        rates.count(&other, now).unwrap();
        assert_eq!(calls(&eager, now + 3 * EACH), 3);
        assert_eq!(calls(&eager, now + 2 * EACH * AT_ONCE), AT_ONCE as usize);
    }
}
