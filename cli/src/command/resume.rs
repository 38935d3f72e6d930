//! Watches, and questions, that go on with another controller when the one that they listen to has gone.

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
    let begin = async || {
        let client = Client::connect(addresses).await?;
        begin(&client).await
    };
    again(addresses.contains(','), why, begin).await
}

/// The answer to a question that may be asked as often as one likes; where the controller has gone meanwhile that of the one that leads next, which is
/// said on standard error.
///
/// # Errors
/// What `ask` gives, where that is not that a controller has gone, or there is only the one; that nobody leads for a while.
pub async fn asked<T>(
    client: &Client,
    ask: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<T> {
    match ask(client).await {
        Ok(answer) => Ok(answer),
        // The same client finds the next one.
        Err(error) => {
            again(client.is_of_several(), error.into(), async || {
                ask(client).await
            })
            .await
        }
    }
}

async fn again<T>(
    is_of_several: bool,
    why: anyhow::Error,
    begin: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T> {
    let is_away = |error: &anyhow::Error| Exit::of(error) == Exit::NoAnswer;
    if !is_of_several || !is_away(&why) {
        return Err(why);
    }
    eprintln!("the controller that was listened to has gone; looking for the one that leads now");
    let end = Instant::now() + BOUND;
    loop {
        match begin().await.map_err(anyhow::Error::from) {
            Err(error) if is_away(&error) && Instant::now() < end => sleep(PAUSE).await,
            begun => return begun,
        }
    }
}
