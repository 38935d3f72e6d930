//! Multicast groups and mirroring sessions. simple_switch_CLI builds them step by step, P4Runtime writes them whole; this module
//! keeps the parts.

use std::collections::BTreeMap;

use ultima_p4runtime::replication::{Replica, ReplicationError, clone_session, multicast_group};
use ultima_p4runtime::v1::{CloneSessionEntry, MulticastGroupEntry};

/// Why a command is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PieceError {
    /// An unknown group.
    #[error("there is no multicast group {0}")]
    Group(u32),
    /// An unknown node.
    #[error("there is no multicast node {0}")]
    Node(usize),
    /// An unknown session.
    #[error("there is no mirroring session {0}")]
    Session(u32),
    /// The resulting entry is invalid.
    #[error(transparent)]
    Entry(#[from] ReplicationError),
}

/// A multicast node: copies of one RID.
#[derive(Debug, Clone)]
struct Node {
    rid: u32,
    ports: Vec<u32>,
}

/// A mirroring session's targets.
#[derive(Debug, Clone, Copy, Default)]
struct Session {
    port: Option<u32>,
    group: Option<u32>,
}

/// The parts of all groups and sessions.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    nodes: Vec<Node>,
    groups: BTreeMap<u32, Vec<usize>>,
    sessions: BTreeMap<u32, Session>,
}

impl Pieces {
    /// Creates a group without nodes.
    pub fn create_group(&mut self, group: u32) {
        self.groups.entry(group).or_default();
    }

    /// Adds a node with the next number.
    pub fn create_node(&mut self, rid: u32, ports: Vec<u32>) {
        self.nodes.push(Node { rid, ports });
    }

    /// Changes a node's ports.
    pub fn update_node(&mut self, node: usize, ports: Vec<u32>) -> Result<(), PieceError> {
        self.nodes
            .get_mut(node)
            .ok_or(PieceError::Node(node))?
            .ports = ports;
        Ok(())
    }

    /// Adds a node to a group.
    pub fn associate(&mut self, group: u32, node: usize) -> Result<(), PieceError> {
        if node >= self.nodes.len() {
            return Err(PieceError::Node(node));
        }
        let nodes = self.groups.get_mut(&group);
        nodes.ok_or(PieceError::Group(group))?.push(node);
        Ok(())
    }

    /// Sets a session's port.
    pub fn mirror_to_port(&mut self, session: u32, port: u32) {
        self.sessions.entry(session).or_default().port = Some(port);
    }

    /// Sets a session's group.
    pub fn mirror_to_group(&mut self, session: u32, group: u32) {
        self.sessions.entry(session).or_default().group = Some(group);
    }

    /// Removes a session.
    pub fn delete_mirror(&mut self, session: u32) -> Result<(), PieceError> {
        let removed = self.sessions.remove(&session);
        removed.map(|_| ()).ok_or(PieceError::Session(session))
    }

    /// Checks that a session exists.
    pub fn check_mirror(&self, session: u32) -> Result<(), PieceError> {
        let found = self.sessions.contains_key(&session);
        found.then_some(()).ok_or(PieceError::Session(session))
    }

    /// Returns all groups as P4Runtime entries.
    pub fn groups(&self) -> Result<Vec<MulticastGroupEntry>, PieceError> {
        (self.groups.iter())
            .map(|(&id, nodes)| Ok(multicast_group(id, self.replicas(nodes))?))
            .collect()
    }

    /// Returns all sessions as P4Runtime entries. A session whose group has no nodes has no replicas.
    pub fn sessions(&self) -> Result<Vec<CloneSessionEntry>, PieceError> {
        let entry = |(&id, session): (&u32, &Session)| {
            let port = session.port.map(|port| Replica { port, instance: 0 });
            let nodes = session.group.and_then(|group| self.groups.get(&group));
            let nodes = nodes.map(Vec::as_slice).unwrap_or_default();
            Ok(clone_session(
                id,
                port.into_iter().chain(self.replicas(nodes)),
            )?)
        };
        self.sessions.iter().map(entry).collect()
    }

    fn replicas(&self, nodes: &[usize]) -> impl Iterator<Item = Replica> {
        nodes.iter().flat_map(|&node| {
            let Node { rid, ports } = &self.nodes[node];
            let instance = *rid;
            (ports.iter()).map(move |&port| Replica { port, instance })
        })
    }
}
