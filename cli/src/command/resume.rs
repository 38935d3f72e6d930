//! Continues watches and requests when a controller fails: at the next leader, or when the only controller is back.

use std::time::Duration;

use anyhow::Result;
use backon::{ConstantBuilder, Retryable as _};
use tokio::time::Instant;
use ultima_api::client::{Client, ClientError};

use crate::controller_address::ControllerAddress;
use crate::exit::Exit;

/// How long to look for a leader.
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
    again(LOOKS, why, begin).await
}

/// Sends an idempotent request, and repeats it if the connection is lost, at the next leader or when the only controller is
/// back. A warning on standard error says so.
///
/// # Errors
/// Errors of `ask`; no controller leads within 10 s.
pub async fn asked<T>(
    client: &Client,
    ask: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<T> {
    match ask(client).await {
        Ok(answer) => Ok(answer),
        // The client itself finds the next leader.
        Err(error) => {
            let what = if client.is_of_several() { LOOKS } else { WAITS };
            again(what, error.into(), async || ask(client).await).await
        }
    }
}

async fn again<T>(
    what: &str,
    why: anyhow::Error,
    begin: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T> {
    if !is_lost(&why) {
        return Err(why);
    }
    eprintln!("warning: lost the connection to the controller; {what}");
    let end = Instant::now() + BOUND;
    let pauses = ConstantBuilder::new().with_delay(PAUSE).without_max_times();
    let begun = (|| async { begin().await.map_err(anyhow::Error::from) }).retry(pauses);
    begun
        .when(|error| is_lost(error) && Instant::now() < end)
        .await
}

/// True if the controller is gone or leads no more. One that refuses a request because a switch or etcd is away answers.
fn is_lost(error: &anyhow::Error) -> bool {
    let is_refusal = matches!(error.downcast_ref(), Some(ClientError::Refused { .. }));
    !is_refusal && Exit::of(error) == Exit::Unavailable
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tonic::Code;

    use super::*;

    /// The number of repetitions of a request that failed with `error`.
    async fn repetitions(error: ClientError) -> u32 {
        let count = Cell::new(0);
        let repeated = again(LOOKS, error.into(), async || {
            count.set(count.get() + 1);
            Ok(())
        });
        let is_repeated = repeated.await.is_ok();
        assert_eq!(is_repeated, count.get() > 0);
        count.get()
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
        let broken = ClientError::NoAnswer {
            address: "127.0.0.1:9555".to_owned(),
            reason: "reset".to_owned(),
            is_handshake: false,
        };
        assert_eq!(repetitions(broken).await, 1);
    }
}
