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

    /// Returns when what begins now is to be given up: it has taken [a while](HURRIED), and somebody waits for it.
    pub async fn gives_up(&self) {
        let latest = Instant::now() + HURRIED;
        let mut waiting = self.0.clone();
        loop {
            if waiting.wait_for(|waiting| *waiting > 0).await.is_err() {
                // Who could wait has gone.
                std::future::pending::<()>().await;
            }
            sleep_until(latest).await;
            if *waiting.borrow() > 0 {
                return;
            }
            // Who waited has gone.
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn nothing_is_given_up_for_who_does_not_wait_any_more() {
        let (moves, waiting) = watch::channel(1);
        let hurry = Hurry::new(waiting);
        let goes = async {
            tokio::task::yield_now().await;
            moves.send_replace(0);
            std::future::pending::<()>().await;
        };
        let gives_up = async {
            tokio::select! {
                () = hurry.gives_up() => {}
                () = goes => {}
            }
        };
        assert!(timeout(2 * HURRIED, gives_up).await.is_err());
        moves.send_replace(1);
        hurry.gives_up().await;
    }
}
