//! The packet replication engine (PRE): multicast groups and clone sessions.

use std::collections::BTreeMap;

use super::error::{ControlError, ErrorKind};
use super::limits::Limits;

/// One copy of a packet: its egress port and replication id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Replica {
    /// Egress port.
    pub port: u16,
    /// Replication id, `standard_metadata.egress_rid` of the copy; P4Runtime's `instance`.
    pub rid: u16,
}

/// A clone session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CloneSession {
    /// One copy is made for each replica.
    pub replicas: Vec<Replica>,
    /// Priority of the copies, 0 to 7 ([`Copy::priority`](super::Copy::priority)).
    pub class_of_service: u8,
    /// Copies are truncated to this many bytes; 0 keeps them whole.
    pub packet_length_bytes: u32,
}

/// Multicast groups and clone sessions.
#[derive(Debug, Clone)]
pub struct Pre {
    groups: Objects<Vec<Replica>>,
    sessions: Objects<CloneSession>,
    classes_of_service: u8,
}

/// Groups, or sessions.
#[derive(Debug, Clone)]
struct Objects<T> {
    kind: &'static str,
    all: BTreeMap<u32, T>,
    max_id: u32,
    /// Largest number of objects, and of replicas of one object.
    limits: [usize; 2],
}

impl Pre {
    pub(super) fn new(limits: &Limits) -> Pre {
        Pre {
            classes_of_service: limits.classes_of_service,
            groups: Objects {
                kind: "multicast group",
                all: BTreeMap::new(),
                max_id: u16::MAX.into(),
                limits: [limits.groups, limits.replicas],
            },
            sessions: Objects {
                kind: "clone session",
                all: BTreeMap::new(),
                max_id: MAX_SESSION,
                limits: [limits.sessions, limits.replicas],
            },
        }
    }

    pub(super) fn group(&self, id: u32) -> Option<&[Replica]> {
        self.groups.all.get(&id).map(Vec::as_slice)
    }

    /// Iterates over ids and replicas of all groups.
    pub fn groups(&self) -> impl Iterator<Item = (u32, &[Replica])> {
        let groups = self.groups.all.iter();
        groups.map(|(id, replicas)| (*id, replicas.as_slice()))
    }

    /// Adds a group. Ids are 1..=65535, the values of `standard_metadata.mcast_grp`.
    pub fn insert_group(&mut self, id: u32, replicas: Vec<Replica>) -> Result<(), ControlError> {
        self.groups.check(id, &replicas)?;
        self.groups.insert(id, replicas)
    }

    /// Replaces the replicas of an existing group.
    pub fn modify_group(&mut self, id: u32, replicas: Vec<Replica>) -> Result<(), ControlError> {
        self.groups.check(id, &replicas)?;
        self.groups.modify(id, replicas)
    }

    /// Removes a group. Later packets to it are dropped.
    pub fn delete_group(&mut self, id: u32) -> Result<(), ControlError> {
        self.groups.delete(id)
    }

    pub(super) fn session(&self, id: u32) -> Option<&CloneSession> {
        self.sessions.all.get(&id)
    }

    /// Adds a clone session. Ids are 1..=32767, as in BMv2.
    pub fn insert_session(&mut self, id: u32, session: CloneSession) -> Result<(), ControlError> {
        self.check_session(id, &session)?;
        self.sessions.insert(id, session)
    }

    /// Replaces an existing clone session.
    pub fn modify_session(&mut self, id: u32, session: CloneSession) -> Result<(), ControlError> {
        self.check_session(id, &session)?;
        self.sessions.modify(id, session)
    }

    /// Removes a clone session. Later clones to it are not made.
    pub fn delete_session(&mut self, id: u32) -> Result<(), ControlError> {
        self.sessions.delete(id)
    }

    fn check_session(&self, id: u32, session: &CloneSession) -> Result<(), ControlError> {
        let (class, most) = (session.class_of_service, self.classes_of_service - 1);
        if class > most {
            let text =
                format!("clone session {id}: class of service {class}, expected 0 to {most}");
            // BMv2's code for a class that its ports may not have.
            return Err(match class > MAX_PRIORITY {
                true => ControlError::invalid(text),
                false => ControlError::new(ErrorKind::Unimplemented, text),
            });
        }
        self.sessions.check(id, &session.replicas)
    }
}

impl<T> Objects<T> {
    fn check(&self, id: u32, replicas: &[Replica]) -> Result<(), ControlError> {
        let (kind, max_id) = (self.kind, self.max_id);
        if id == 0 || id > max_id {
            let text = format!("{kind} {id}: the id must be in 1..={max_id}");
            return Err(ControlError::invalid(text));
        }
        self.check_room(id, "replicas", replicas.len(), self.limits[1])?;
        let mut sorted: Vec<_> = replicas.iter().map(|r| (r.port, r.rid)).collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let (port, rid) = pair[0];
            return Err(ControlError::invalid(format!(
                "{kind} {id}: replica of port {port}, instance {rid} is given twice"
            )));
        }
        Ok(())
    }

    fn check_room(
        &self,
        id: u32,
        what: &str,
        found: usize,
        limit: usize,
    ) -> Result<(), ControlError> {
        let what = format_args!("{} {id}: number of {what}", self.kind);
        ControlError::check_room(what, found, limit)
    }

    fn insert(&mut self, id: u32, new: T) -> Result<(), ControlError> {
        let kind = self.kind;
        if self.all.contains_key(&id) {
            let text = format!("{kind} {id} exists already");
            return Err(ControlError::new(ErrorKind::AlreadyExists, text));
        }
        self.check_room(id, &format!("{kind}s"), self.all.len() + 1, self.limits[0])?;
        self.all.insert(id, new);
        Ok(())
    }

    fn modify(&mut self, id: u32, new: T) -> Result<(), ControlError> {
        match self.all.get_mut(&id) {
            Some(old) => *old = new,
            None => return Err(self.missing(id)),
        }
        Ok(())
    }

    fn delete(&mut self, id: u32) -> Result<(), ControlError> {
        let gone = self.all.remove(&id);
        gone.map(|_| ()).ok_or_else(|| self.missing(id))
    }

    fn missing(&self, id: u32) -> ControlError {
        let text = format!("there is no {} {id}", self.kind);
        ControlError::new(ErrorKind::NotFound, text)
    }
}

/// Highest priority: `standard_metadata.priority` has 3 bits.
const MAX_PRIORITY: u8 = 7;
/// Highest session id: simple_switch reserves bit 15.
const MAX_SESSION: u32 = 0x7fff;

#[cfg(test)]
mod tests {
    use super::super::error::ErrorKind;
    use super::*;

    fn replica(port: u16, rid: u16) -> Replica {
        Replica { port, rid }
    }

    #[test]
    fn a_group_exists_once_and_is_full_at_its_limits() {
        let mut pre = Pre::new(&Limits {
            groups: 1,
            replicas: 2,
            ..Limits::default()
        });
        pre.insert_group(1, vec![replica(1, 1)]).unwrap();
        let twice = pre.insert_group(1, vec![]).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::AlreadyExists);
        let many = pre.insert_group(2, vec![]).unwrap_err();
        assert_eq!(many.kind(), ErrorKind::ResourceExhausted);
        let wide = pre.modify_group(1, vec![replica(1, 1), replica(2, 1), replica(3, 1)]);
        assert_eq!(wide.unwrap_err().kind(), ErrorKind::ResourceExhausted);
        assert_eq!(pre.group(1).unwrap(), [replica(1, 1)]);
    }

    #[test]
    fn ids_and_replicas_are_checked() {
        let mut pre = Pre::new(&Limits::default());
        for id in [0, 0x1_0000] {
            assert_eq!(
                pre.insert_group(id, vec![]).unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
        }
        let twice = pre
            .insert_group(1, vec![replica(1, 5), replica(1, 5)])
            .unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            twice.to_string(),
            "multicast group 1: replica of port 1, instance 5 is given twice"
        );
        assert_eq!(pre.delete_group(1).unwrap_err().kind(), ErrorKind::NotFound);
        let session = CloneSession::default();
        assert!(pre.insert_session(0x8000, session.clone()).is_err());
        let class = |class_of_service| CloneSession {
            class_of_service,
            ..CloneSession::default()
        };
        let high = pre.insert_session(3, class(8)).unwrap_err();
        assert_eq!(
            high.to_string(),
            "clone session 3: class of service 8, expected 0 to 7"
        );
        pre.insert_session(4, class(7)).unwrap();
        assert!(pre.modify_session(4, class(9)).is_err());
        assert_eq!(pre.session(4).unwrap().class_of_service, 7);
        let mut one_class = Pre::new(&Limits {
            classes_of_service: 1,
            ..Limits::default()
        });
        let high = one_class.insert_session(3, class(1)).unwrap_err();
        assert_eq!(high.kind(), ErrorKind::Unimplemented);
        one_class.insert_session(3, class(0)).unwrap();
        assert_eq!(
            pre.modify_session(3, session).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
}
