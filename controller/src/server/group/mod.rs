//! Several controllers for one fabric: one leads, the others follow its store as standbys.
//!
//! The switches decide which controller leads, by P4Runtime arbitration; a
//! [`Lookout`](lookout) observes their answers. A [`Member`](member::Member) is a standby at first.
//! When most switches have no primary it claims a [term](crate::p4rt::Term), leads until a later
//! term is known, and is a standby again. The leader's committed changes are in a
//! [journal](super::journal) that the others [follow](follow); a [claim](claim) collects them
//! before a controller leads.

mod claim;
pub mod copy;
mod follow;
mod gate;
mod lookout;
mod member;
mod peer;
mod replication;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use ultima_api::address::Listen;
use ultima_api::v1::replication_server::ReplicationServer;
use ultima_grpc::transport::root_cause;

use super::access::Guard;
use super::controller::Controller;
use super::error::ServeError;
use super::journal::ACK_TIMEOUT;
use super::listen;
use super::{Config, attentive, check_listen, drained, open_store};
use gate::Gate;
use member::Member;
pub(super) use replication::{ReplicationService, Who};

/// Default of [`Group::grace`]. A leader whose connections break reconnects sooner.
pub const GRACE: Duration = Duration::from_secs(1);

/// The controllers of a fabric, from the view of one of them.
#[derive(Clone, Debug)]
pub struct Group {
    /// The addresses of the others' control APIs.
    pub peers: Vec<String>,
    /// How many of them must store a change before it is committed, at most all.
    pub copies: usize,
    /// How long most switches must report that they have no primary before a standby takes over.
    pub grace: Duration,
    /// How long followers may take to store a change.
    pub ack_timeout: Duration,
    /// True to lead even if committed changes may be lost.
    pub lead_anyway: bool,
}

/// The parameters in which all controllers of a group must agree. A change is known to the next
/// leader only if both count copies the same way, and is usable only with the same fabric and
/// program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// The number of controllers.
    pub controllers: u32,
    /// How many of them, besides the leader, must store a change.
    pub copies: u32,
    /// The [digest](crate::fabric::Fabric::digest) of the fabric; 0 for a controller that runs alone.
    pub fabric: u64,
    /// The [cookie](crate::program::Program::cookie) of the program; 0 for a controller that runs alone.
    pub program: u64,
}

impl Shape {
    /// Why controllers with these two shapes cannot form a group.
    pub fn refusal_of(self, other: Shape) -> Option<String> {
        let counts = |it: Shape| (it.controllers, it.copies);
        if counts(self) != counts(other) {
            return Some(format!(
                "the groups differ, {self} and {other}; start all controllers with the same --copies, each with all others as --peers"
            ));
        }
        let (one, two) = (self.fabric, other.fabric);
        if one != two {
            return Some(format!(
                "the fabrics differ, {one:016x} and {two:016x}; start all controllers with the same --fabric, the leader last"
            ));
        }
        let (one, two) = (self.program, other.program);
        (one != two).then(|| {
            format!("the programs differ, {one:016x} and {two:016x}; start all controllers in one version with the same --program, the leader last")
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape {
            controllers,
            copies,
            ..
        } = self;
        write!(f, "{controllers} controllers with --copies {copies}")
    }
}

impl Group {
    /// A group with these peers in which a change needs copies on half of them, rounded up: it
    /// survives the loss of any one controller.
    pub fn new(peers: Vec<String>) -> Self {
        Group {
            copies: peers.len().div_ceil(2),
            peers,
            grace: GRACE,
            ack_timeout: ACK_TIMEOUT,
            lead_anyway: false,
        }
    }

    fn shape(&self, config: &Config) -> Shape {
        // A command line has room for far fewer than 2³² peers.
        Shape {
            controllers: self.peers.len() as u32 + 1,
            copies: self.copies as u32,
            fabric: config.fabric.digest(),
            program: config.program.cookie(),
        }
    }

    /// How many controllers, including this one, must agree before one leads, so that one of them
    /// has every committed change: all except as many as need to store it besides the leader.
    fn quorum(&self) -> usize {
        match self.copies {
            0 => 1,
            copies => (self.peers.len() + 1).saturating_sub(copies).max(1),
        }
    }
}

/// A controller of a group. Dropping it ends everything except the switches' forwarding.
pub struct MemberHandle {
    address: Listen,
    member: Arc<Member>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    work: JoinHandle<()>,
}

/// Serves the control API as one of several controllers: as a standby, and as leader when the
/// switches have none.
///
/// # Errors
/// The address is taken, the store cannot be opened, or the group is inconsistent.
pub async fn serve_in(config: Config, group: Group) -> Result<MemberHandle, ServeError> {
    check_listen(&config)?;
    let mut server = attentive(config.tls.as_ref())?;
    if group.copies > group.peers.len() {
        return Err(ServeError::Copies {
            copies: group.copies,
            peers: group.peers.len(),
        });
    }
    let listen = config.listen.to_string();
    let again =
        |at: usize| group.peers[at] == listen || group.peers[..at].contains(&group.peers[at]);
    if let Some(at) = (0..group.peers.len()).find(|at| again(*at)) {
        let address = group.peers[at].clone();
        return Err(ServeError::PeerAgain { address });
    }
    let listener = listen::bind(&config.listen).await?;
    let address = listener.address.clone();
    let store = open_store(&config)?;
    let member = Arc::new(Member::new(config, group, Arc::new(store))?);
    let replication = ReplicationService::new(Who::Member(Arc::clone(&member)));
    let server = server
        .add_service(Guard(Gate::new(Arc::clone(&member))))
        .add_service(Guard(ReplicationServer::new(replication)));
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(listener.serve(server, async {
        // An error means that the handle was dropped, which also stops the server.
        let _ = stopped.await;
    }));
    let work = tokio::spawn({
        let member = Arc::clone(&member);
        async move { member.work().await }
    });
    Ok(MemberHandle {
        address,
        member,
        stop: Some(stop),
        server,
        work,
    })
}

impl MemberHandle {
    /// The address of the control API.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Returns the reason when the controller has ended without being stopped, which is a defect.
    pub async fn ended(&mut self) -> String {
        let ended = tokio::select! {
            work = &mut self.work => work.err().map(|error| error.to_string()),
            server = &mut self.server => match server {
                Ok(served) => served.err().map(|error| root_cause(&error)),
                Err(error) => Some(error.to_string()),
            },
        };
        ended.unwrap_or_else(|| "the listener has ended".into())
    }

    /// Returns a function for the present metrics as OpenMetrics text: the controller's role, and
    /// while it leads everything that a single controller reports.
    pub fn metrics(&self) -> impl Fn() -> String + Send + Sync + use<> {
        let member = Arc::clone(&self.member);
        move || member.metrics_text()
    }

    /// The controller, while it leads.
    pub fn leader(&self) -> Option<Arc<Controller>> {
        self.member.leader()
    }

    /// Stops serving and ends pending calls. The switches keep their entries.
    pub async fn stop(mut self) {
        self.end();
        drop(self.stop.take());
        if !self.server.is_finished() {
            drained(&mut self.server, self.member.stop_timeout()).await;
        }
    }

    fn end(&self) {
        self.work.abort();
        self.member.step_down();
    }
}

impl Drop for MemberHandle {
    fn drop(&mut self) {
        self.end();
        self.server.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_with_another_fabric_or_program_cannot_join() {
        let shape = Shape {
            controllers: 2,
            copies: 1,
            fabric: 0xab,
            program: 0xcd,
        };
        let refusal = |other: Shape| shape.refusal_of(other);
        let fabric = refusal(Shape {
            fabric: 0xac,
            ..shape
        });
        assert_eq!(
            fabric.as_deref(),
            Some(
                "the fabrics differ, 00000000000000ab and 00000000000000ac; start all controllers with the same --fabric, the leader last"
            )
        );
        let program = refusal(Shape {
            program: 0xce,
            ..shape
        });
        let program = program.expect("another program");
        assert!(program.contains("with the same --program"), "{program}");
        assert_eq!(refusal(shape), None);
    }

    #[test]
    fn every_quorum_has_a_controller_that_stored_the_change() {
        for others in 0..6 {
            for copies in 1..=others {
                let peers = vec![String::new(); others];
                let group = Group {
                    copies,
                    ..Group::new(peers)
                };
                // The leader and `copies` others have stored the change; the quorum must include
                // one of them.
                let (all, have) = (others + 1, copies + 1);
                assert!(group.quorum() + have > all, "{others} {copies}");
                assert!(group.quorum() - 1 + have <= all, "no more than needed");
            }
        }
        assert_eq!(Group::new(vec![String::new()]).copies, 1);
        assert_eq!(Group::new(vec![String::new(); 2]).copies, 1);
        assert_eq!(Group::new(vec![String::new(); 4]).copies, 2);
    }
}
