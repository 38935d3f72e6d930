//! Several controllers for one fabric: one is primary, the others copy what it promises and stand by.
//!
//! Switches decide who is primary, by P4Runtime arbitration: a [`Lookout`](lookout) sees what they say. A
//! [`Member`](member::Member) stands by, claims a [term](crate::p4rt::Term) when most switches have no primary, leads in it
//! until a later one is known, and stands by again. What it promises is in a [journal](super::journal) that others
//! [copy](follow), and asks for with a [claim](claim) before it leads.

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
use ultima_p4runtime::transport::root_cause;

use super::controller::Controller;
use super::error::ServeError;
use super::listen::{self, Listen};
use super::{Config, attentive, drained, open_store};
use crate::api::replication_server::ReplicationServer;
use gate::Gate;
use member::Member;
pub(super) use replication::{ReplicationService, Who};

/// How long most switches are without a primary before another takes over, unless the group says otherwise. A primary whose
/// connections break is back sooner.
pub const GRACE: Duration = Duration::from_secs(1);

/// The controllers of a fabric, as one of them sees it.
#[derive(Clone, Debug)]
pub struct Group {
    /// The others, each where it serves the control API.
    pub peers: Vec<String>,
    /// How many of them have stored what a primary promises, at most all.
    pub copies: usize,
    /// For how long most switches say that they have no primary before one takes over.
    pub grace: Duration,
    /// Whether this one leads also when promises of others may be lost by that.
    pub lead_anyway: bool,
}

/// In what all controllers of a group have to be alike: what one promises is only known to who leads next if both count the same
/// way, and only kept by one that has the same fabric and program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// How many controllers there are.
    pub controllers: u32,
    /// How many of them have stored what the primary promises, besides that.
    pub copies: u32,
    /// The [digest](crate::fabric::Fabric::digest) of its fabric; 0 of one that does not say it, as it is of an earlier version, or leads alone.
    pub fabric: u64,
    /// The [cookie](crate::program::Program::cookie) of its program; 0 likewise.
    pub program: u64,
}

impl Shape {
    /// Why one of a group of this shape has nothing to do with one of another.
    pub fn refusal_of(self, other: Shape) -> Option<String> {
        let counts = |it: Shape| (it.controllers, it.copies);
        if counts(self) != counts(other) {
            return Some(format!(
                "this is a group of {self}, and not of {other}; start all with the same --copies, and all others as --peers"
            ));
        }
        let differ = |one: u64, two: u64| one != 0 && two != 0 && one != two;
        let (one, two) = (self.fabric, other.fabric);
        if differ(one, two) {
            return Some(format!(
                "this is a group with fabric {one:016x}, and not {two:016x}; start all with the same --fabric, the primary last"
            ));
        }
        let (one, two) = (self.program, other.program);
        differ(one, two).then(|| {
            format!("this is a group with program {one:016x}, and not {two:016x}; start all of one version with the same --program, the primary last")
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
        write!(f, "{controllers} with --copies {copies}")
    }
}

impl Group {
    /// A group that promises what all have stored but one, and all of two: whichever ends, the others know it.
    pub fn new(peers: Vec<String>) -> Self {
        Group {
            copies: peers.len().div_ceil(2),
            peers,
            grace: GRACE,
            lead_anyway: false,
        }
    }

    fn shape(&self, config: &Config) -> Shape {
        // Command lines have room for far fewer.
        Shape {
            controllers: self.peers.len() as u32 + 1,
            copies: self.copies as u32,
            fabric: config.fabric.digest(),
            program: config.program.cookie(),
        }
    }

    /// How many controllers, this one included, are to be asked before one leads, so that one of them knows whatever was
    /// promised: all but as many as have stored it besides the primary.
    fn quorum(&self) -> usize {
        match self.copies {
            0 => 1,
            copies => (self.peers.len() + 1).saturating_sub(copies).max(1),
        }
    }
}

/// A controller that stands by, or leads. Dropping it leaves the switches as they are and ends everything else.
pub struct MemberHandle {
    address: Listen,
    member: Arc<Member>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    work: JoinHandle<()>,
}

/// Serves the control API as one of several controllers: begins as one that stands by, and leads when switches have no primary.
///
/// # Errors
/// The address is taken, the store is none, or the group makes no sense.
pub async fn serve_in(config: Config, group: Group) -> Result<MemberHandle, ServeError> {
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
    let server = attentive()
        .add_service(Gate::new(Arc::clone(&member)))
        .add_service(ReplicationServer::new(replication));
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(listener.serve(server, async {
        // Either way the handle is gone.
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
    /// Where the control API listens.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Returns why it has ended by itself, which it should not: it neither stands by nor leads any more.
    pub async fn ended(&mut self) -> String {
        let ended = tokio::select! {
            work = &mut self.work => work.err().map(|error| error.to_string()),
            server = &mut self.server => match server {
                Ok(served) => served.err().map(|error| root_cause(&error)),
                Err(error) => Some(error.to_string()),
            },
        };
        ended.unwrap_or_else(|| "its listener has ended".into())
    }

    /// What it counts and measures, now and later, as OpenMetrics text: how it stands in its group, and while it leads all that one alone has.
    pub fn metrics(&self) -> impl Fn() -> String + Send + Sync + use<> {
        let member = Arc::clone(&self.member);
        move || member.metrics_text()
    }

    /// The controller, while it leads.
    pub fn primary(&self) -> Option<Arc<Controller>> {
        self.member.primary()
    }

    /// Stops serving; calls that wait are ended. The switches keep what they have.
    pub async fn stop(mut self) {
        self.end();
        drop(self.stop.take());
        if !self.server.is_finished() {
            drained(&mut self.server).await;
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
    fn who_knows_something_else_is_none_of_the_group() {
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
                "this is a group with fabric 00000000000000ab, and not 00000000000000ac; start all with the same --fabric, the primary last"
            )
        );
        let program = refusal(Shape {
            program: 0xce,
            ..shape
        });
        let program = program.expect("another program");
        assert!(program.contains("with the same --program"), "{program}");
        // Of a version that does not say them.
        let earlier = Shape {
            fabric: 0,
            program: 0,
            ..shape
        };
        assert_eq!([refusal(shape), refusal(earlier)], [None, None]);
        assert_eq!(earlier.refusal_of(shape), None);
    }

    #[test]
    fn who_is_asked_and_who_has_stored_it_have_one_in_common() {
        for others in 0..6 {
            for copies in 1..=others {
                let peers = vec![String::new(); others];
                let group = Group {
                    copies,
                    ..Group::new(peers)
                };
                // The primary and `copies` others have it; of all these at least one is asked.
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
