//! What the control API's codes mean.

use tonic::Code;

/// The codes that it answers with, each with its name and its meaning: the proto's head and docs/guide.md have the same.
pub const CODES: [(Code, &str, &str); 10] = [
    (
        Code::InvalidArgument,
        "INVALID_ARGUMENT",
        "the request can never be granted",
    ),
    (
        Code::NotFound,
        "NOT_FOUND",
        "there is no such job, host, rank, switch, port or link",
    ),
    (
        Code::AlreadyExists,
        "ALREADY_EXISTS",
        "a job has that name, or those members, already",
    ),
    (
        Code::ResourceExhausted,
        "RESOURCE_EXHAUSTED",
        "over a limit of a switch, of a host's ports or of the controller",
    ),
    (
        Code::FailedPrecondition,
        "FAILED_PRECONDITION",
        "not as things stand: no rank is left, the members change or are others by now",
    ),
    (
        Code::Aborted,
        "ABORTED",
        "it was begun and undone: a switch refused what the job needs, or the job was deleted meanwhile",
    ),
    (
        Code::DeadlineExceeded,
        "DEADLINE_EXCEEDED",
        "the time that was given is over, and not all members have joined",
    ),
    (
        Code::Unavailable,
        "UNAVAILABLE",
        "a switch does not answer, or not before trees had to move, too few controllers do, or this one is not primary, or stops",
    ),
    (
        Code::OutOfRange,
        "OUT_OF_RANGE",
        "the member's epoch is over (the metadata have ultima-epoch-over), or a message is too long",
    ),
    (
        Code::Internal,
        "INTERNAL",
        "the controller's store fails, or the controller itself",
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
