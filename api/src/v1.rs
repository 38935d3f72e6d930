//! The control API's messages and stubs, generated from `proto/ultima/control/v1`.

#![allow(missing_docs)] // generated items have no comments.

use std::fmt;

tonic::include_proto!("ultima.control.v1");

/// Descriptors of every message and service, as an encoded `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Omits the key, which must not reach logs.
impl fmt::Debug for JoinResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Lists every field, so that a new one cannot be forgotten.
        let JoinResponse {
            rank,
            job_id,
            epoch,
            seed,
            gather,
            group_address,
            group_mac,
            members,
            reorder,
            key,
            limits,
            // Secret.
            token: _,
        } = self;
        f.debug_struct("JoinResponse")
            .field("rank", rank)
            .field("job_id", job_id)
            .field("epoch", epoch)
            .field("seed", seed)
            .field("gather", gather)
            .field("group_address", group_address)
            .field("group_mac", group_mac)
            .field("members", members)
            .field("reorder", reorder)
            .field("sealed", &!key.is_empty())
            .field("limits", limits)
            .finish()
    }
}

impl JoinResponse {
    /// The request of this member of `job` to leave.
    pub fn leave(&self, job: &str) -> LeaveRequest {
        LeaveRequest {
            job: job.to_owned(),
            epoch: self.epoch,
            rank: self.rank,
            job_id: self.job_id,
            token: self.token,
        }
    }

    /// The first message of this member's session in `job`, without settings.
    pub fn attendance(&self, job: &str) -> Attendance {
        Attendance {
            job: job.to_owned(),
            epoch: self.epoch,
            rank: self.rank,
            job_id: self.job_id,
            token: self.token,
            ..Attendance::default()
        }
    }
}

/// Omits the attempt, which becomes the token.
impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JoinRequest {
            job,
            host,
            wait_ms,
            attempt: _,
        } = self;
        f.debug_struct("JoinRequest")
            .field("job", job)
            .field("host", host)
            .field("wait_ms", wait_ms)
            .finish_non_exhaustive()
    }
}

/// Omits the token.
impl fmt::Debug for LeaveRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaveRequest {
            job,
            epoch,
            rank,
            job_id,
            token: _,
        } = self;
        f.debug_struct("LeaveRequest")
            .field("job", job)
            .field("epoch", epoch)
            .field("rank", rank)
            .field("job_id", job_id)
            .finish_non_exhaustive()
    }
}

/// Omits the token.
impl fmt::Debug for Attendance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attendance {
            job,
            epoch,
            rank,
            slot_bytes,
            job_id,
            settings,
            token: _,
        } = self;
        f.debug_struct("Attendance")
            .field("job", job)
            .field("epoch", epoch)
            .field("rank", rank)
            .field("slot_bytes", slot_bytes)
            .field("job_id", job_id)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_has_no_keys() {
        let seat = JoinResponse {
            rank: 3,
            key: vec![173; 16],
            token: 173,
            ..JoinResponse::default()
        };
        let asked = JoinRequest {
            attempt: 173,
            ..JoinRequest::default()
        };
        for printed in [
            format!("{asked:?}"),
            format!("{:?}", seat.leave("train")),
            format!("{:#?}", seat.attendance("train")),
        ] {
            assert!(!printed.contains("173"), "{printed}");
        }
        let prepared = PrepareEpoch {
            place: Some(prepare_epoch::Place::Seat(seat.clone())),
            ..PrepareEpoch::default()
        };
        for printed in [format!("{seat:?}"), format!("{prepared:#?}")] {
            assert!(printed.contains("rank: 3") && printed.contains("sealed: true"));
            assert!(
                !printed.contains("173") && !printed.contains("key"),
                "{printed}"
            );
        }
    }
}
