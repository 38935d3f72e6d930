//! The gRPC codes of the control API and their meanings.

use tonic::Code;

/// Each code of the control API with its name and its meaning. The head of `control.proto` and
/// `docs/guide.md` have the same table.
pub const CODES: [(Code, &str, &str); 11] = [
    (
        Code::InvalidArgument,
        "INVALID_ARGUMENT",
        "the request is malformed or can never be granted",
    ),
    (
        Code::PermissionDenied,
        "PERMISSION_DENIED",
        "the caller's certificate has another role or host, or the caller is not that member",
    ),
    (
        Code::NotFound,
        "NOT_FOUND",
        "there is no such job, host, rank, switch, port or link",
    ),
    (
        Code::AlreadyExists,
        "ALREADY_EXISTS",
        "a job of that name exists, or the job already has those members",
    ),
    (
        Code::ResourceExhausted,
        "RESOURCE_EXHAUSTED",
        "a limit of a switch, of a host's ports or of the controller is exceeded",
    ),
    (
        Code::FailedPrecondition,
        "FAILED_PRECONDITION",
        "not in the present state: no rank is free, the members are changing or have changed, or no path leads to a member",
    ),
    (
        Code::Aborted,
        "ABORTED",
        "another request deleted the job, or a switch refused the configuration of its ports",
    ),
    (
        Code::DeadlineExceeded,
        "DEADLINE_EXCEEDED",
        "the wait has ended and not all members have joined",
    ),
    (
        Code::Unavailable,
        "UNAVAILABLE",
        "a switch does not answer, a job is not ready, etcd does not answer, or this controller does not lead or is stopping",
    ),
    (
        Code::OutOfRange,
        "OUT_OF_RANGE",
        "the member's epoch is over (see the metadata ultima-epoch-over), or a message is too long",
    ),
    (
        Code::Internal,
        "INTERNAL",
        "the controller's store or the controller itself has failed",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::EPOCH_OVER;

    #[test]
    fn the_proto_has_the_table() {
        let proto = include_str!("../proto/ultima/control/v1/control.proto");
        let head = proto.split("syntax =").next().unwrap_or_default();
        for (_, name, meaning) in CODES {
            let row = format!("//   {name:<20} {meaning}\n");
            assert!(head.contains(&row), "{row}");
        }
        assert_eq!(head.matches("//   ").count(), CODES.len());
        assert!(head.contains(EPOCH_OVER));
    }
}
