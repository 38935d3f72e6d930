//! Calls that others wait for.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long a switch may take for a call that others wait for.
pub const HURRIED: Duration = Duration::from_millis(250);

/// Tells how many wait for what is done now.
#[derive(Clone, Debug)]
pub struct Hurry(watch::Receiver<usize>);

impl Hurry {
    /// So many wait.
    pub fn new(waiting: watch::Receiver<usize>) -> Self {
        Hurry(waiting)
    }

    /// Returns when what begins now is to be given up: it has taken [a while](HURRIED), and somebody has waited for it.
    pub async fn gives_up(&self) {
        let latest = Instant::now() + HURRIED;
        let mut waiting = self.0.clone();
        if waiting.wait_for(|waiting| *waiting > 0).await.is_err() {
            // Who could wait has gone.
            std::future::pending::<()>().await;
        }
        sleep_until(latest).await;
    }
}
