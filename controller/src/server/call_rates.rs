//! The rate of each client's calls, which is bounded, so that one client leaves time for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tonic::Status;
use ultima_api::identity::Identity;

use super::lock::lock;

/// The most clients that are remembered.
const MOST: usize = 1 << 16;

/// The limit for the calls of each client with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The time between two calls in the long run.
    pub interval: Duration,
    /// Calls at once after a pause: the ranks of a large host join, attend and leave.
    pub burst: u32,
}

/// 500 calls a second.
impl Default for RateLimit {
    fn default() -> Self {
        RateLimit {
            interval: Duration::from_millis(2),
            burst: 5000,
        }
    }
}

/// For each client that called recently, the time at which its calls so far would end, one each interval: the generic cell
/// rate algorithm (ITU-T I.371). Clones share it.
#[derive(Clone, Debug)]
pub struct CallRates {
    limit: RateLimit,
    ends: Arc<Mutex<HashMap<String, Instant>>>,
}

impl CallRates {
    /// No calls yet.
    pub fn new(limit: RateLimit) -> Self {
        let ends = Arc::default();
        CallRates { limit, ends }
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The client calls too often.
    pub fn count(&self, client: &Identity, now: Instant) -> Result<(), Status> {
        let RateLimit { interval, burst } = self.limit;
        let mut ends = lock(&self.ends);
        if ends.len() >= MOST {
            ends.retain(|_, end| *end > now);
        }
        let client = client.to_string();
        let end = ends.get(&client).map_or(now, |end| now.max(*end)) + interval;
        if end - now > interval * burst {
            return Err(Status::resource_exhausted(format!(
                "{client} makes more than {} calls a second; make fewer",
                Duration::from_secs(1).div_duration_f32(interval)
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
        let limit = RateLimit::default();
        let RateLimit { interval, burst } = limit;
        let (rates, now) = (CallRates::new(limit), Instant::now());
        let of = |name: &str| Identity::of_uri(&format!("spiffe://ultima/agent/{name}")).unwrap();
        let (eager, other) = (of("h1"), of("h2"));
        let calls = |client, now| {
            (0..)
                .take_while(|_| rates.count(client, now).is_ok())
                .count()
        };
        assert_eq!(calls(&eager, now), burst as usize);
        let refused = rates.count(&eager, now).unwrap_err();
        let says = "agent h1 makes more than 500 calls a second; make fewer";
        assert_eq!(refused.message(), says);
        rates.count(&other, now).unwrap();
        assert_eq!(calls(&eager, now + 3 * interval), 3);
        assert_eq!(calls(&eager, now + 2 * interval * burst), burst as usize);
    }
}
