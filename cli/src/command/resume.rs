//! Watches that go on with another controller when the one that they listen to has gone.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};
use ultima_controller::client::{Client, ClientError};

use crate::exit::Exit;

/// For how long a controller that leads is looked for anew; a look itself takes as long as that of every command.
const BOUND: Duration = Duration::from_secs(10);
/// The pause before it is looked for again.
const PAUSE: Duration = Duration::from_millis(200);

/// Begins a watch again, at whichever of the controllers at `addresses` leads now, when the one before has ended because of `why`; says so on
/// standard error.
///
/// # Errors
/// `why`, where that is not that a controller has gone, or there is only the one; that nobody leads for a while; what `begin` gives.
pub async fn resumed<W>(
    addresses: &str,
    why: anyhow::Error,
    begin: impl AsyncFn(&Client) -> Result<W, ClientError>,
) -> Result<W> {
    let is_away = |error: &anyhow::Error| Exit::of(error) == Exit::NoAnswer;
    if !addresses.contains(',') || !is_away(&why) {
        return Err(why);
    }
    eprintln!("the controller that was listened to has gone; looking for the one that leads now");
    let end = Instant::now() + BOUND;
    loop {
        let again = async {
            let client = Client::connect(addresses).await?;
            anyhow::Ok(begin(&client).await?)
        };
        match again.await {
            Err(error) if is_away(&error) && Instant::now() < end => sleep(PAUSE).await,
            begun => return begun,
        }
    }
}
