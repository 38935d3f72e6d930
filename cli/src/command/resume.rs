//! Continues watches and requests when a controller fails: at the next leader, or when the only controller is back.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::Result;
use backon::{ConstantBuilder, Retryable as _};
use tokio::time::{Instant, timeout_at};
use ultima_api::client::{ANSWER, Client, ClientError};

use crate::controller_address::ControllerAddress;
use crate::exit::Exit;

/// How long to look for a leader, or to wait for the only controller.
const BOUND: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// What a command does meanwhile, with several controllers and with one.
const LOOKS: &str = "looking for the current leader";
const WAITS: &str = "waiting until it answers again, at most 10 s";

/// Restarts a watch that failed with `why` at the current leader at `at`, and reports that on standard error.
///
/// # Errors
/// `why`, if it does not mean that the controller is gone or leads no more, or if there is only one controller; no leader
/// within 10 s; errors of `begin`.
pub async fn resumed<W>(
    at: &ControllerAddress,
    why: anyhow::Error,
    begin: impl AsyncFn(&Client) -> Result<W, ClientError>,
) -> Result<W> {
    let (address, tls) = (at.address()?, at.tls()?);
    if !address.contains(',') {
        return Err(why);
    }
    let begin = async || {
        let client = Client::connect_with(&address, tls.clone()).await?;
        begin(&client).await
    };
    again(LOOKS, why, Instant::now() + BOUND, begin).await
}

/// Sends an idempotent request, and repeats it if the connection is lost, at the next leader or when the only controller is
/// back. A warning on standard error says so. With one controller, all attempts together take no longer than one request may: a
/// controller that hangs is not asked again.
///
/// # Errors
/// Errors of `ask`; no controller leads within 10 s.
pub async fn asked<T>(
    client: &Client,
    ask: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<T> {
    let begun = Instant::now();
    let why = match ask(client).await {
        Ok(answer) => return Ok(answer),
        Err(error) => error.into(),
    };
    let bound = Instant::now() + BOUND;
    let (what, end) = match client.is_of_several() {
        // The client itself finds the next leader.
        true => (LOOKS, bound),
        false => (WAITS, bound.min(begun + ANSWER)),
    };
    again(what, why, end, async || ask(client).await).await
}

/// Begins until `end`, as long as the controller is gone or leads no more, as in `why`.
async fn again<T>(
    what: &str,
    why: anyhow::Error,
    end: Instant,
    begin: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T> {
    if !is_lost(&why) || Instant::now() >= end {
        return Err(why);
    }
    eprintln!("warning: lost the connection to the controller; {what}");
    // If an attempt hangs until the end, the error of the one before says more.
    let why = RefCell::new(why);
    let attempt = || async {
        begin()
            .await
            .map_err(|error| *why.borrow_mut() = error.into())
    };
    let pauses = ConstantBuilder::new().with_delay(PAUSE).without_max_times();
    let begun = attempt.retry(pauses);
    let begun = begun.when(|()| is_lost(&why.borrow()) && Instant::now() < end);
    let begun = timeout_at(end, begun.into_future()).await;
    match begun {
        Ok(Ok(begun)) => Ok(begun),
        _ => Err(why.into_inner()),
    }
}

/// True if the controller is gone or leads no more. One that refuses a request because a switch or etcd is away answers.
fn is_lost(error: &anyhow::Error) -> bool {
    let is_refusal = matches!(error.downcast_ref(), Some(ClientError::Refused { .. }));
    !is_refusal && Exit::of(error) == Exit::Unavailable
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use tonic::Code;

    use super::*;

    /// The number of repetitions of a request that failed with `error`.
    async fn repetitions(error: ClientError) -> u32 {
        let count = Cell::new(0);
        let end = Instant::now() + BOUND;
        let repeated = again(LOOKS, error.into(), end, async || {
            count.set(count.get() + 1);
            Ok(())
        });
        let is_repeated = repeated.await.is_ok();
        assert_eq!(is_repeated, count.get() > 0);
        count.get()
    }

    fn no_answer() -> ClientError {
        ClientError::NoAnswer {
            address: "127.0.0.1:9555".to_owned(),
            reason: "timed out".to_owned(),
            is_handshake: false,
        }
    }

    #[tokio::test]
    async fn repetitions_end_in_time_even_if_the_controller_hangs() {
        let count = Cell::new(0);
        let ask = async |end: Instant| {
            let hangs = again(WAITS, no_answer().into(), end, async || {
                count.set(count.get() + 1);
                pending::<Result<(), _>>().await
            });
            hangs.await.unwrap_err().to_string()
        };
        let end = Instant::now() + Duration::from_millis(50);
        let error = ask(end).await;
        assert!(error.contains("timed out"), "{error}");
        assert!(Instant::now() >= end && count.get() == 1);
        // The first request has taken all the time.
        ask(end).await;
        assert_eq!(count.get(), 1);
    }

    #[tokio::test]
    async fn the_last_error_counts_even_if_the_next_attempt_hangs() {
        let count = Cell::new(0);
        let end = Instant::now() + 2 * PAUSE;
        let asked = again(LOOKS, no_answer().into(), end, async || {
            count.set(count.get() + 1);
            match count.get() {
                1 => Err(ClientError::NoneAnswers {
                    addresses: "a,b".to_owned(),
                    reason: "refused".to_owned(),
                    is_handshake: false,
                }),
                _ => pending::<Result<(), _>>().await,
            }
        });
        let error = asked.await.unwrap_err().to_string();
        assert!(error.starts_with("no controller at a,b answers"), "{error}");
        assert_eq!(count.get(), 2);
    }

    #[tokio::test]
    async fn only_requests_that_a_controller_may_serve_later_are_repeated() {
        let message = || "why".to_owned();
        let refused = ClientError::Refused {
            code: Code::Unavailable,
            message: message(),
            field: None,
        };
        assert_eq!(repetitions(refused).await, 0);
        let message = message();
        assert_eq!(repetitions(ClientError::Deposed { message }).await, 1);
        let (addresses, reason) = ("a,b".to_owned(), "reset".to_owned());
        let lost = ClientError::LostLeader { addresses, reason };
        assert_eq!(repetitions(lost).await, 1);
        // The only controller is restarted.
        assert_eq!(repetitions(no_answer()).await, 1);
    }
}
