//! Client arbitration (P4Runtime §5), without I/O: takes arbitration updates and returns notices.
//!
//! The primary of a role is the connected controller with the highest election id that the role has ever seen. When its stream
//! ends, the role has no primary until a controller announces an election id that is at least as high. The switch does not
//! promote a backup by itself.

use std::collections::{BTreeMap, VecDeque};

use tonic::{Code, Status};
use ultima_grpc::fair::{FairLimit, Origin};
use ultima_p4runtime::rpc;
use ultima_p4runtime::v1::{MasterArbitrationUpdate, Role, Uint128};

use super::unknown_device;

/// Largest number of controllers of one role.
pub(super) const MAX_CONTROLLERS: usize = 64;
/// Largest number of named roles with controllers. The default role always has room. Beyond it, a new role ends one of the client
/// with the most.
const MAX_ROLES: usize = 256;
/// Largest number of named roles without controllers whose highest election ids the switch remembers.
const MAX_PAST_ROLES: usize = 1024;

/// Identifies a controller's stream.
pub(super) type StreamId = u64;

/// A message for a controller. An error ends its stream.
pub(super) type Notice = (StreamId, Result<MasterArbitrationUpdate, Status>);

/// The controllers of all roles.
#[derive(Debug)]
pub(super) struct Arbitration {
    device_id: u64,
    /// The default role, and named roles with controllers.
    roles: BTreeMap<String, RoleState>,
    /// Named roles with controllers, by the clients that were first.
    named: FairLimit<String>,
    /// Named roles without controllers and their highest election ids, in the order in which their last streams ended. Beyond
    /// [`MAX_PAST_ROLES`] the switch forgets the first: §5.3 sets no bound, but names cost a client nothing.
    past: VecDeque<(String, u128)>,
}

#[derive(Debug, Default)]
struct RoleState {
    /// The highest election id ever seen.
    highest: Option<u128>,
    /// Its number among the named roles.
    number: u64,
    live: BTreeMap<StreamId, Option<u128>>,
}

impl RoleState {
    fn primary(&self) -> Option<StreamId> {
        let highest = self.highest?;
        self.live
            .iter()
            .find(|(_, id)| **id == Some(highest))
            .map(|(stream, _)| *stream)
    }

    /// Ends the backup with the lowest election id, or one without, if the role is full and a new stream has a higher one.
    fn make_room(
        &mut self,
        stream: StreamId,
        role: &str,
        id: Option<u128>,
    ) -> Result<Option<Notice>, Status> {
        if self.live.contains_key(&stream) || self.live.len() < MAX_CONTROLLERS {
            return Ok(None);
        }
        let primary = self.primary();
        let backups = (self.live.iter()).filter(|(stream, _)| Some(**stream) != primary);
        let lowest = backups.min_by_key(|(_, id)| **id);
        let full = format!("role `{role}` has {MAX_CONTROLLERS} controllers, which is the limit");
        let full = Status::resource_exhausted(full);
        match lowest {
            Some((&backup, &lowest)) if lowest < id => {
                self.live.remove(&backup);
                Ok(Some((backup, Err(full))))
            }
            _ => Err(full),
        }
    }
}

impl Arbitration {
    pub(super) fn new(device_id: u64) -> Self {
        Arbitration {
            device_id,
            roles: BTreeMap::from([(String::new(), RoleState::default())]),
            named: FairLimit::new(MAX_ROLES),
            past: VecDeque::new(),
        }
    }

    /// Handles an arbitration update. An error ends the stream.
    pub(super) fn update(
        &mut self,
        stream: StreamId,
        origin: Origin,
        update: &MasterArbitrationUpdate,
    ) -> Result<Vec<Notice>, Status> {
        let role = role_name(update)?;
        let id = update.election_id.as_ref().map(u128::from);
        self.check(stream, update.device_id, role, id)?;
        let mut ended = self.make_role(role, origin)?;
        let past = self.past.iter().position(|(name, _)| name == role);
        let past = past.and_then(|at| self.past.remove(at));
        let state = self.roles.entry(role.to_owned()).or_default();
        ended.extend(state.make_room(stream, role, id)?);
        state.highest = state.highest.max(past.map(|(_, id)| id));
        let primary_before = state.primary();
        state.live.insert(stream, id);
        state.highest = state.highest.max(id);
        let primary = state.primary();
        // §5.3: all controllers get an update when one becomes the primary, repeats its election id as the primary, or steps
        // down. Other updates of a backup are answered to that backup only.
        let to_all = primary == Some(stream) || primary != primary_before;
        let notices = self.notify_all(role).into_iter();
        let notices = notices.filter(|(to, _)| to_all || *to == stream);
        Ok(ended.into_iter().chain(notices).collect())
    }

    /// Adds a role that has no controllers. Returns the ends of the streams of a role that gives way.
    fn make_role(&mut self, role: &str, origin: Origin) -> Result<Vec<Notice>, Status> {
        if self.roles.contains_key(role) {
            return Ok(Vec::new());
        }
        let full = |role: &str| {
            Status::resource_exhausted(format!(
                "role `{role}`: {MAX_ROLES} named roles have controllers, which is the limit"
            ))
        };
        let added = self.named.add(origin, role.to_owned());
        let (number, replaced) = added.map_err(|_| full(role))?;
        let state = RoleState {
            number,
            ..RoleState::default()
        };
        self.roles.insert(role.to_owned(), state);
        let Some(replaced) = replaced else {
            return Ok(Vec::new());
        };
        let state = self.retire(replaced.clone());
        let streams = state.into_iter().flat_map(|state| state.live.into_keys());
        Ok(streams
            .map(|stream| (stream, Err(full(&replaced))))
            .collect())
    }

    /// Checks an update (§5.3, cases 1 and 2).
    fn check(
        &self,
        stream: StreamId,
        device_id: u64,
        role: &str,
        id: Option<u128>,
    ) -> Result<(), Status> {
        let current = self
            .roles
            .iter()
            .find(|(_, state)| state.live.contains_key(&stream));
        match current {
            None if device_id != self.device_id => {
                return Err(unknown_device(device_id, self.device_id));
            }
            Some(_) if device_id != self.device_id => {
                return Err(Status::failed_precondition(format!(
                    "this stream is for device {}, not {device_id}; open another for that one",
                    self.device_id
                )));
            }
            Some((name, _)) if name != role => {
                return Err(Status::failed_precondition(format!(
                    "this stream has role `{name}`, not `{role}`; open another for another role"
                )));
            }
            _ => {}
        }
        let taken = |(&other, &its)| other != stream && its == id;
        if let (Some(id), Some(state)) = (id, self.roles.get(role))
            && state.live.iter().any(taken)
        {
            return Err(Status::invalid_argument(format!(
                "election id {id} is used by another live controller; each needs its own"
            )));
        }
        Ok(())
    }

    /// Handles the end of a controller's stream.
    pub(super) fn leave(&mut self, stream: StreamId) -> Vec<Notice> {
        let role = self
            .roles
            .iter()
            .find(|(_, state)| state.live.contains_key(&stream));
        let Some(role) = role.map(|(name, _)| name.clone()) else {
            return Vec::new();
        };
        let Some(state) = self.roles.get_mut(&role) else {
            return Vec::new();
        };
        let was_primary = state.primary() == Some(stream);
        state.live.remove(&stream);
        if state.live.is_empty() && !role.is_empty() {
            self.retire(role);
            return Vec::new();
        }
        if was_primary {
            self.notify_all(&role)
        } else {
            Vec::new()
        }
    }

    /// Removes a named role, and remembers its highest election id.
    fn retire(&mut self, role: String) -> Option<RoleState> {
        let state = self.roles.remove(&role)?;
        self.named.remove(state.number);
        if let Some(highest) = state.highest {
            if self.past.len() == MAX_PAST_ROLES {
                self.past.pop_front();
            }
            self.past.push_back((role, highest));
        }
        Some(state)
    }

    /// Checks that a request is from the primary (§12, checks 1 and 2).
    pub(super) fn check_primary(
        &self,
        device_id: u64,
        role: &str,
        election_id: Option<Uint128>,
    ) -> Result<(), Status> {
        if device_id != self.device_id {
            return Err(unknown_device(device_id, self.device_id));
        }
        let state = self.roles.get(role);
        if state.is_none() && !self.past.iter().any(|(name, _)| name == role) {
            return Err(Status::not_found(format!(
                "no controller has role `{role}`"
            )));
        }
        let id = election_id.as_ref().map(u128::from);
        let primary = state
            .filter(|state| state.primary().is_some())
            .and_then(|state| state.highest);
        if primary.is_some() && primary == id {
            return Ok(());
        }
        Err(Status::permission_denied(match (id, primary) {
            (None, _) => "the request has no election id: expected the primary's".to_owned(),
            (Some(id), None) => {
                format!("election id {id}: the role has no primary; announce an election id first")
            }
            (Some(id), Some(primary)) => {
                format!("election id {id}: expected the primary's, {primary}")
            }
        }))
    }

    /// True if a stream belongs to the primary of its role.
    pub(super) fn is_primary(&self, stream: StreamId) -> bool {
        self.primaries().any(|primary| primary == stream)
    }

    /// Iterates over the primaries of all roles. Every role has the whole pipeline, so each primary sends and receives packets
    /// and notifications.
    pub(super) fn primaries(&self) -> impl Iterator<Item = StreamId> {
        self.roles.values().filter_map(RoleState::primary)
    }

    /// Returns the notices for all connected controllers of a role (§5.4).
    fn notify_all(&self, role: &str) -> Vec<Notice> {
        let Some(state) = self.roles.get(role) else {
            return Vec::new();
        };
        let primary = state.primary();
        let notice = |(&stream, _)| {
            let (code, message) = match primary {
                Some(primary) if primary == stream => (Code::Ok, "you are the primary"),
                Some(_) => (Code::AlreadyExists, "there is a primary, you are a backup"),
                None => (Code::NotFound, "there is no primary, you are a backup"),
            };
            let update = MasterArbitrationUpdate {
                device_id: self.device_id,
                role: (!role.is_empty()).then(|| Role {
                    name: role.to_owned(),
                    ..Role::default()
                }),
                election_id: state.highest.map(Uint128::from),
                status: Some(rpc::Status {
                    code: code as i32,
                    message: message.to_owned(),
                    details: Vec::new(),
                }),
            };
            (stream, Ok(update))
        };
        state.live.iter().map(notice).collect()
    }
}

fn role_name(update: &MasterArbitrationUpdate) -> Result<&str, Status> {
    let Some(role) = &update.role else {
        return Ok("");
    };
    if role.config.is_some() {
        return Err(Status::invalid_argument(
            "role.config: this switch supports no role definitions; leave it unset",
        ));
    }
    if role.name.len() > 256 {
        return Err(Status::invalid_argument(
            "role.name: expected at most 256 bytes",
        ));
    }
    Ok(&role.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Origin = Origin {
        address: None,
        connection: 1,
    };

    fn update(id: Option<u64>) -> MasterArbitrationUpdate {
        MasterArbitrationUpdate {
            device_id: 1,
            election_id: id.map(|low| Uint128 { high: 0, low }),
            ..MasterArbitrationUpdate::default()
        }
    }

    fn in_role(name: &str, id: Option<u64>) -> MasterArbitrationUpdate {
        MasterArbitrationUpdate {
            role: Some(Role {
                name: name.to_owned(),
                ..Role::default()
            }),
            ..update(id)
        }
    }

    fn codes(notices: &[Notice]) -> Vec<(StreamId, Code)> {
        let code = |update: &Result<MasterArbitrationUpdate, Status>| match update {
            Ok(update) => Code::from(update.status.as_ref().expect("a status").code),
            Err(status) => status.code(),
        };
        notices.iter().map(|(to, it)| (*to, code(it))).collect()
    }

    fn update_in(notice: &Notice) -> &MasterArbitrationUpdate {
        notice.1.as_ref().expect("an update")
    }

    fn writes(arbitration: &Arbitration, id: u64) -> Result<(), Code> {
        arbitration
            .check_primary(1, "", Some(Uint128 { high: 0, low: id }))
            .map_err(|status| status.code())
    }

    #[test]
    fn the_highest_election_id_is_the_primary() {
        let mut all = Arbitration::new(1);
        assert_eq!(
            codes(&all.update(1, HOME, &update(Some(5))).expect("joins")),
            [(1, Code::Ok)]
        );
        let second = all.update(2, HOME, &update(Some(3))).expect("joins");
        assert_eq!(codes(&second), [(2, Code::AlreadyExists)]);
        assert_eq!(
            update_in(&second[0]).election_id,
            Some(Uint128 { high: 0, low: 5 })
        );
        assert_eq!(
            (writes(&all, 5), writes(&all, 3)),
            (Ok(()), Err(Code::PermissionDenied))
        );
        // Promotion: all controllers get an update.
        let promoted = all.update(2, HOME, &update(Some(6))).expect("changes");
        assert_eq!(codes(&promoted), [(1, Code::AlreadyExists), (2, Code::Ok)]);
        assert_eq!(
            (writes(&all, 5), writes(&all, 6)),
            (Err(Code::PermissionDenied), Ok(()))
        );
        // Repeated: all controllers get an update, as after any update of the primary.
        assert_eq!(
            all.update(2, HOME, &update(Some(6)))
                .expect("repeats")
                .len(),
            2
        );
    }

    #[test]
    fn no_backup_is_promoted_when_the_primary_leaves() {
        let mut all = Arbitration::new(1);
        all.update(1, HOME, &update(Some(5))).expect("joins");
        all.update(2, HOME, &update(Some(3))).expect("joins");
        assert_eq!(codes(&all.leave(1)), [(2, Code::NotFound)]);
        assert_eq!(writes(&all, 3), Err(Code::PermissionDenied));
        assert_eq!(
            writes(&all, 5),
            Err(Code::PermissionDenied),
            "its controller is gone"
        );
        // 3 is below the highest ever seen, 5 is not.
        assert_eq!(
            codes(&all.update(2, HOME, &update(Some(3))).expect("stays")),
            [(2, Code::NotFound)]
        );
        assert_eq!(
            codes(&all.update(2, HOME, &update(Some(5))).expect("changes")),
            [(2, Code::Ok)]
        );
        assert_eq!(writes(&all, 5), Ok(()));
        assert!(all.leave(7).is_empty(), "a stream that never joined");
    }

    #[test]
    fn a_primary_may_step_down() {
        let mut all = Arbitration::new(1);
        all.update(1, HOME, &update(Some(5))).expect("joins");
        all.update(2, HOME, &update(Some(4))).expect("joins");
        let down = all.update(1, HOME, &update(Some(2))).expect("steps down");
        assert_eq!(codes(&down), [(1, Code::NotFound), (2, Code::NotFound)]);
        assert_eq!(writes(&all, 5), Err(Code::PermissionDenied));
    }

    #[test]
    fn without_an_election_id_one_is_a_backup_and_zero_is_an_id() {
        let mut all = Arbitration::new(1);
        let backup = all.update(1, HOME, &update(None)).expect("joins");
        assert_eq!(codes(&backup), [(1, Code::NotFound)]);
        assert_eq!(
            update_in(&backup[0]).election_id,
            None,
            "no controller has had an election id"
        );
        assert_eq!(
            all.check_primary(1, "", None)
                .expect_err("not the primary")
                .code(),
            Code::PermissionDenied
        );
        let zero = all.update(2, HOME, &update(Some(0))).expect("joins");
        assert_eq!(codes(&zero), [(1, Code::AlreadyExists), (2, Code::Ok)]);
        assert_eq!(writes(&all, 0), Ok(()));
        all.update(3, HOME, &update(None))
            .expect("several may have none");
    }

    #[test]
    fn the_same_election_id_is_refused() {
        let mut all = Arbitration::new(1);
        all.update(1, HOME, &update(Some(5))).expect("joins");
        let error = all.update(2, HOME, &update(Some(5))).expect_err("taken");
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(writes(&all, 5), Ok(()));
        assert!(all.leave(2).is_empty());
        all.leave(1);
        all.update(3, HOME, &update(Some(5))).expect("free again");
    }

    #[test]
    fn device_and_role_of_a_stream_stay() {
        let mut all = Arbitration::new(1);
        let other = MasterArbitrationUpdate {
            device_id: 2,
            ..update(Some(1))
        };
        assert_eq!(
            all.update(1, HOME, &other).expect_err("unknown").code(),
            Code::NotFound
        );
        all.update(1, HOME, &update(Some(1))).expect("joins");
        assert_eq!(
            all.update(1, HOME, &other).expect_err("moves").code(),
            Code::FailedPrecondition
        );
        let role = Role {
            name: "telemetry".to_owned(),
            ..Role::default()
        };
        let moved = MasterArbitrationUpdate {
            role: Some(role.clone()),
            ..update(Some(1))
        };
        assert_eq!(
            all.update(1, HOME, &moved).expect_err("moves").code(),
            Code::FailedPrecondition
        );
        // The same id in another role is another controller's, and a primary of its own.
        let joined = all.update(2, HOME, &moved).expect("joins");
        assert_eq!(update_in(&joined[0]).role, Some(role));
        assert_eq!(codes(&joined), [(2, Code::Ok)]);
        let id = Some(Uint128 { high: 0, low: 1 });
        assert!(all.check_primary(1, "telemetry", id).is_ok());
        assert_eq!(
            all.check_primary(1, "x", id).expect_err("no role").code(),
            Code::NotFound
        );
        assert_eq!(
            all.check_primary(9, "", id).expect_err("no device").code(),
            Code::NotFound
        );
    }

    #[test]
    fn controllers_and_roles_are_bounded() {
        let mut all = Arbitration::new(1);
        for stream in 0..MAX_CONTROLLERS as u64 {
            all.update(stream, HOME, &update(None)).expect("joins");
        }
        let error = all.update(1000, HOME, &update(None)).expect_err("full");
        assert_eq!(error.code(), Code::ResourceExhausted);
        // A higher election id ends the backup with the lowest one, or without any.
        let primary = all.update(1000, HOME, &update(Some(7))).expect("has room");
        assert_eq!(primary.len(), 1 + MAX_CONTROLLERS);
        assert_eq!(codes(&primary[..1]), [(0, Code::ResourceExhausted)]);
        assert_eq!(writes(&all, 7), Ok(()));
        for id in 1..MAX_CONTROLLERS as u64 {
            let backup = all.update(1000 + id, HOME, &update(Some(7 + id)));
            let ended = codes(&backup.expect("has room"))[0];
            assert_eq!(ended, (id, Code::ResourceExhausted));
        }
        let low = all.update(1100, HOME, &update(Some(6))).expect_err("full");
        assert_eq!(low.code(), Code::ResourceExhausted);
        let last = all
            .update(1100, HOME, &update(Some(100)))
            .expect("has room");
        assert_eq!(codes(&last)[0], (1000, Code::ResourceExhausted));
        assert!(all.leave(1000).is_empty());
        for n in 0..=MAX_ROLES as u64 {
            let joined = all.update(2000 + n, HOME, &in_role(&format!("r{n}"), None));
            assert_eq!(joined.is_ok(), n < MAX_ROLES as u64, "{n}");
        }
    }

    /// A client that announces many role names, on streams that stay or end, locks no other role out for good.
    #[test]
    fn role_names_of_one_client_do_not_lock_others_out() {
        let mut all = Arbitration::new(1);
        for n in 0..=MAX_ROLES as u64 {
            let _ = all.update(n, HOME, &in_role(&format!("r{n}"), Some(1)));
        }
        let joined = all
            .update(1000, HOME, &update(Some(5)))
            .expect("default role");
        assert_eq!(codes(&joined), [(1000, Code::Ok)]);
        let full = all
            .update(1001, HOME, &in_role("x", Some(1)))
            .expect_err("full");
        assert_eq!(full.code(), Code::ResourceExhausted);
        let other = Origin {
            address: None,
            connection: 2,
        };
        let joined = all.update(2000, other, &in_role("x", Some(1)));
        let codes = codes(&joined.expect("a place of the first client"));
        assert_eq!(codes, [(0, Code::ResourceExhausted), (2000, Code::Ok)]);
        assert!(all.leave(0).is_empty());
        all.leave(2000);
        all.update(1001, HOME, &in_role("x", Some(1)))
            .expect("has room");
        for n in 0..10_000 {
            all.leave(1001);
            all.update(1001, HOME, &in_role(&format!("y{n}"), Some(1)))
                .expect("has room");
        }
        assert_eq!(all.past.len(), MAX_PAST_ROLES);
    }

    #[test]
    fn a_role_keeps_its_highest_election_id_without_controllers() {
        let mut all = Arbitration::new(1);
        all.update(1, HOME, &in_role("telemetry", Some(5)))
            .expect("joins");
        assert!(all.leave(1).is_empty());
        let write = |all: &Arbitration| {
            let id = Some(Uint128 { high: 0, low: 5 });
            all.check_primary(1, "telemetry", id)
                .map_err(|status| status.code())
        };
        assert_eq!(write(&all), Err(Code::PermissionDenied));
        let low = all
            .update(2, HOME, &in_role("telemetry", Some(4)))
            .expect("joins");
        assert_eq!(codes(&low), [(2, Code::NotFound)]);
        let high = all
            .update(3, HOME, &in_role("telemetry", Some(5)))
            .expect("joins");
        assert_eq!(codes(&high), [(2, Code::AlreadyExists), (3, Code::Ok)]);
        assert_eq!(write(&all), Ok(()));
        // Without an election id there is nothing to remember.
        all.update(4, HOME, &in_role("idle", None)).expect("joins");
        all.leave(4);
        assert!(all.past.is_empty());
    }
}
