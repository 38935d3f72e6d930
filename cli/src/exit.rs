//! Exit codes: scripts can rely on them. `ultima --help` and docs/guide.md have the same table.

use std::fmt;
use std::process::ExitCode;

use tonic::Code;
use ultima_agent::{JoinError, SessionError};
use ultima_controller::client::ClientError;
use ultima_controller::server::ServeError;
use ultima_lab::LabError;

use ultima_console::output::Unprinted;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what it was asked for, and found nothing.
    Done,
    /// It found something, or what it began failed.
    Found,
    /// It was asked for something that cannot be.
    BadInput,
    /// Something that it needs does not answer.
    NoAnswer,
    /// There is nothing of that name.
    NotThere,
    /// As things stand that cannot be granted.
    Refused,
    /// The time that it was given is over.
    TooLate,
    /// A signal ended it.
    Interrupted,
}

/// All of them, with what users are told.
const ALL: [(Exit, &str); 8] = [
    (Exit::Done, "done"),
    (
        Exit::Found,
        "something was found or failed: differences, packets that stop, a switch that refuses, a wrong result",
    ),
    (
        Exit::BadInput,
        "bad input: arguments, a file, an address that is taken; nothing was done",
    ),
    (
        Exit::NoAnswer,
        "the controller, or a switch that is needed, does not answer, or ended before the answer",
    ),
    (
        Exit::NotThere,
        "no job, host, lab or part of the fabric has that name",
    ),
    (
        Exit::Refused,
        "refused as things stand: the name or the ranks are taken, a limit is reached, a switch is another controller's",
    ),
    (Exit::TooLate, "the time to wait for is over"),
    (Exit::Interrupted, "interrupted"),
];

/// The table, as help shows it.
pub fn help() -> String {
    let line = |(exit, says): &(Exit, &str)| format!("  {:>3}  {says}", exit.number());
    let lines: Vec<String> = ALL.iter().map(line).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

impl Exit {
    /// The code.
    pub const fn number(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Found => 1,
            Exit::BadInput => 2,
            Exit::NoAnswer => 3,
            Exit::NotThere => 4,
            Exit::Refused => 5,
            Exit::TooLate => 6,
            // 128 and the number of SIGINT, as shells have it.
            Exit::Interrupted => 130,
        }
    }

    /// [`Found`](Exit::Found) or [`Done`](Exit::Done).
    pub fn found(something: bool) -> Self {
        match something {
            true => Exit::Found,
            false => Exit::Done,
        }
    }

    /// The error that ends a command so, and says why.
    pub fn because(self, why: impl Into<String>) -> Ended {
        let why = why.into();
        Ended { exit: self, why }
    }

    /// How a command ended that gave this error.
    pub fn of(error: &anyhow::Error) -> Self {
        if error.is::<HalfDone>() {
            return Exit::Found;
        }
        let known = |cause: &(dyn std::error::Error + 'static)| {
            let joining = match cause.downcast_ref::<SessionError>() {
                Some(
                    SessionError::Join(JoinError::Client(error)) | SessionError::Client(error),
                ) => Some(error),
                _ => None,
            };
            let client = cause.downcast_ref::<ClientError>().or(joining);
            let ours = cause.downcast_ref::<Ended>().map(|ended| ended.exit);
            let client = client.map(Exit::of_client);
            let serve = cause.downcast_ref::<ServeError>().map(Exit::of_serve);
            let lab = cause.downcast_ref::<LabError>().map(Exit::of_lab);
            // What was asked for may be done: it is the answer that is lost.
            let printed = cause.is::<Unprinted>().then_some(Exit::Found);
            client.or(ours).or(serve).or(lab).or(printed)
        };
        error.chain().find_map(known).unwrap_or(Exit::BadInput)
    }

    fn of_client(error: &ClientError) -> Self {
        match error {
            ClientError::NoAnswer { .. }
            | ClientError::NoneAnswers { .. }
            | ClientError::LostPrimary { .. }
            | ClientError::NoPrimary { .. } => Exit::NoAnswer,
            ClientError::NotOurs { .. } => Exit::BadInput,
            ClientError::EpochOver { .. } => Exit::Refused,
            // What was asked for may be done: it is the answer that is not known.
            ClientError::TooLong { .. } => Exit::Found,
            ClientError::Refused { code, .. } => Exit::of_code(*code),
        }
    }

    /// A controller that does not start. What is wrong with its options and files is bad input.
    fn of_serve(error: &ServeError) -> Self {
        match error {
            ServeError::Switch(error) if error.is_silence() => Exit::NoAnswer,
            ServeError::Switch(error) if error.is_anothers() => Exit::Refused,
            ServeError::Switch(_) | ServeError::Keep(_) => Exit::Found,
            ServeError::NoMajority { .. } => Exit::NoAnswer,
            ServeError::Restore(_) | ServeError::OfAGroup => Exit::Refused,
            ServeError::Listen { .. }
            | ServeError::NotASocket { .. }
            | ServeError::Program(_)
            | ServeError::Limit(_)
            | ServeError::Store(_)
            | ServeError::Copies { .. }
            | ServeError::Peer { .. }
            | ServeError::PeerAgain { .. } => Exit::BadInput,
        }
    }

    fn of_lab(error: &LabError) -> Self {
        match error {
            LabError::NoLab { .. } | LabError::NoNode { .. } => Exit::NotThere,
            LabError::Up { .. } | LabError::HalfWay { .. } | LabError::Inside { .. } => {
                Exit::Refused
            }
            LabError::Gone { .. }
            | LabError::Ip { .. }
            | LabError::Process { .. }
            | LabError::Stop { .. }
            | LabError::System { .. } => Exit::Found,
            LabError::Interrupted => Exit::Interrupted,
            LabError::NotRoot
            | LabError::NoProgram { .. }
            | LabError::WhichLab { .. }
            | LabError::Grpc { .. }
            | LabError::FrontPanel { .. }
            | LabError::Tls { .. }
            | LabError::Fabric(_)
            | LabError::File { .. } => Exit::BadInput,
        }
    }

    /// How a command ends that the control API answers so.
    pub fn of_code(code: Code) -> Self {
        match code {
            Code::InvalidArgument | Code::Unimplemented => Exit::BadInput,
            Code::Unavailable => Exit::NoAnswer,
            Code::NotFound => Exit::NotThere,
            Code::AlreadyExists | Code::ResourceExhausted | Code::FailedPrecondition => {
                Exit::Refused
            }
            Code::DeadlineExceeded => Exit::TooLate,
            Code::Ok
            | Code::Aborted
            | Code::Cancelled
            | Code::DataLoss
            | Code::Internal
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unknown => Exit::Found,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.number())
    }
}

/// Why a command ends as it does, where it says so itself.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Ended {
    exit: Exit,
    why: String,
}

/// What had been done before the error that this is the context of: whatever that is, it is no input that nothing was done with.
#[derive(Debug)]
pub struct HalfDone(pub String);

impl fmt::Display for HalfDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use ultima_controller::codes::CODES;

    use super::*;

    #[test]
    fn the_guide_has_the_table() {
        let guide = include_str!("../../docs/guide.md");
        for (exit, says) in ALL {
            let row = format!("| {} | {says} |", exit.number());
            assert!(guide.contains(&row), "{row}");
            assert!(help().contains(says));
        }
    }

    #[test]
    fn the_guide_has_the_codes() {
        let guide = include_str!("../../docs/guide.md");
        for (code, name, meaning) in CODES {
            let row = format!(
                "| `{name}` | {meaning} | {} |",
                Exit::of_code(code).number()
            );
            assert!(guide.contains(&row), "{row}");
        }
    }

    #[test]
    fn what_was_half_done_is_no_bad_input() {
        let error = ClientError::Refused {
            code: Code::InvalidArgument,
            message: "h9".into(),
            field: None,
        };
        let half = Err::<(), _>(error).context(HalfDone("one done, then".into()));
        let half = half.context("applying").unwrap_err();
        assert_eq!(Exit::of(&half), Exit::Found);
        let stopped = anyhow::Error::from(Exit::NoAnswer.because("the controller stopped"));
        assert_eq!(Exit::of(&stopped), Exit::NoAnswer);
        let addresses = "a,b".into();
        let standing_by = anyhow::Error::from(ClientError::NoPrimary { addresses });
        assert_eq!(Exit::of(&standing_by), Exit::NoAnswer);
    }

    #[test]
    fn what_the_controller_says_decides() {
        let refused = |code| ClientError::Refused {
            code,
            message: String::new(),
            field: None,
        };
        for (error, exit) in [
            (refused(Code::InvalidArgument), Exit::BadInput),
            (refused(Code::NotFound), Exit::NotThere),
            (refused(Code::ResourceExhausted), Exit::Refused),
            (refused(Code::Unavailable), Exit::NoAnswer),
            (refused(Code::Aborted), Exit::Found),
        ] {
            let error = Err::<(), _>(error).context("creating").unwrap_err();
            assert_eq!(Exit::of(&error), exit, "{error:?}");
        }
        for (exit, _) in ALL {
            let error = anyhow::Error::from(exit.because("h9")).context("job train");
            assert_eq!(Exit::of(&error), exit);
            assert_eq!(format!("{error:#}"), "job train: h9");
        }
        assert_eq!(Exit::of(&anyhow::anyhow!("a file")), Exit::BadInput);
    }
}
