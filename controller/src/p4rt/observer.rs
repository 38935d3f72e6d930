//! Looking on while another controller leads a switch.

use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use super::ELECTION_ID;
use super::dial::{self, ARBITRATION, Device};
use super::error::ConnectError;
use super::session::{Mastership, Session};

/// A stream to a switch with an election id that is lower than any primary's of ours: it changes nothing there, and is told who
/// leads.
pub struct Observer {
    session: Session,
}

impl Observer {
    /// Begins to look on.
    ///
    /// # Errors
    /// The switch does not answer for as long as `patience` says, or refuses.
    pub async fn connect(device: &Device, patience: Duration) -> Result<Self, ConnectError> {
        let deadline = Instant::now() + patience;
        let mut rpc = dial::connect(device, deadline, patience).await?;
        loop {
            // Of two streams with the same id a switch takes one (P4Runtime §5.3); 1 is what most other clients use.
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

    /// What the switch says: [`Mastership::Backup`] as long as it has a primary, [`Mastership::Vacant`] while it has none, or
    /// [`Mastership::Primary`] where it makes the highest that is there one, or has never seen another.
    pub fn standing(&self) -> watch::Receiver<Mastership> {
        self.session.mastership()
    }
}
