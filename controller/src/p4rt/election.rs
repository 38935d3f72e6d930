//! Election ids: which controller a switch obeys (P4Runtime §5).

use ultima_wire::MAGIC;

/// The election id of a controller that shares its store with no other: Ultima's magic number,
/// `0x554c`. All such controllers use the same id, so that a second one is rejected instead of taking
/// over jobs that it does not know. Other clients can connect as backup with any other id; most use 1.
pub const ELECTION_ID: u128 = MAGIC as u128;

/// The election id of a controller that etcd elected in this revision: the revision in the upper 64
/// bits, [`ELECTION_ID`] in the lower. A later leader has a higher id, so switches reject the writes
/// of a deposed one.
pub fn election_id_of(revision: u64) -> u128 {
    u128::from(revision) << 64 | ELECTION_ID
}

/// True if the election id is that of an elected controller.
pub(super) fn is_elected(election_id: u128) -> bool {
    election_id > ELECTION_ID && election_id as u64 as u128 == ELECTION_ID
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_leaders_have_higher_ids_that_are_recognised() {
        let ids = [0, 1, 7, u64::MAX].map(election_id_of);
        assert_eq!(ids[0], ELECTION_ID);
        assert_eq!(ids[2], 0x7_0000_0000_0000_554c);
        assert!(ids.is_sorted());
        assert!(ids[1..].iter().all(|id| is_elected(*id)));
        for other in [0, 1, ELECTION_ID, 3 << 64, 3 << 64 | 1, u128::MAX] {
            assert!(!is_elected(other), "{other}");
        }
    }
}
