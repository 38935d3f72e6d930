//! Observes the primary of a switch without becoming one.

use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use super::ELECTION_ID;
use super::dial::{self, ARBITRATION, Device};
use super::error::ConnectError;
use super::session::{Mastership, Session};

/// A stream with an election id below that of any Ultima primary. It changes nothing at the switch,
/// and is notified of the primary.
pub struct Observer {
    session: Session,
}

impl Observer {
    /// Starts observing.
    ///
    /// # Errors
    /// The switch does not answer within `patience`, or rejects the stream.
    pub async fn connect(device: &Device, patience: Duration) -> Result<Self, ConnectError> {
        let deadline = Instant::now() + patience;
        let mut rpc = dial::connect(device, deadline, patience).await?;
        loop {
            // A switch accepts one stream per id (P4Runtime §5.3); most other clients use 1.
            let election_id = rand::rng().random_range(2..ELECTION_ID);
            let opened = dial::open(&mut rpc, device.device_id, election_id);
            return match timeout_at(deadline, opened).await {
                Err(_) => Err(dial::no_answer(device, patience, ARBITRATION.into())),
                Ok(Ok(stream)) => Ok(Observer {
                    session: Session::start(stream),
                }),
                Ok(Err(status)) if status.code() == Code::InvalidArgument => continue,
                Ok(Err(status)) => Err(dial::refused(device, &status)),
            };
        }
    }

    /// The observed state: [`Mastership::Backup`] while the switch has a primary,
    /// [`Mastership::Vacant`] while it has none, and [`Mastership::Primary`] if the switch promotes
    /// the highest connected id or has seen no other.
    pub fn standing(&self) -> watch::Receiver<Mastership> {
        self.session.mastership()
    }
}
