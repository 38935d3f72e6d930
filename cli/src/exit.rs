//! Exit codes, which scripts rely on. `ultima --help` and docs/guide.md print the same table.

use std::fmt;
use std::process::ExitCode;

use tonic::Code;
use ultima_agent::{JoinError, SessionError};
use ultima_api::client::ClientError;
use ultima_controller::server::ServeError;
use ultima_lab::LabError;

use ultima_console::error_line;
use ultima_console::output::Unprinted;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Success,
    /// The command found a problem, or failed and may have done something.
    Failure,
    /// Invalid arguments or files; nothing was done.
    InvalidInput,
    /// The controller or a switch does not answer.
    Unavailable,
    /// No object has that name.
    NotFound,
    /// The current state does not allow the request.
    Rejected,
    /// A time limit that the user set has passed.
    TimedOut,
    /// SIGINT or SIGTERM ended the command.
    Interrupted,
}

/// All exit codes with their descriptions.
const ALL: [(Exit, &str); 8] = [
    (Exit::Success, "success"),
    (
        Exit::Failure,
        "a problem was found, or the operation failed: drift, packet loss, a wrong result",
    ),
    (
        Exit::InvalidInput,
        "invalid input: arguments, a file, an address in use; nothing was done",
    ),
    (
        Exit::Unavailable,
        "no answer: the controller or a switch cannot be reached, or stopped before it answered",
    ),
    (
        Exit::NotFound,
        "not found: no job, host, lab, switch, port or link has that name",
    ),
    (
        Exit::Rejected,
        "rejected in the current state: name taken, limit reached, switch led by another controller",
    ),
    (Exit::TimedOut, "timed out"),
    (Exit::Interrupted, "interrupted"),
];

/// The table of exit codes for `--help`.
pub fn help() -> String {
    let line = |(exit, text): &(Exit, &str)| format!("  {:>3}  {text}", exit.number());
    let lines: Vec<String> = ALL.iter().map(line).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

impl Exit {
    /// The process's exit code.
    pub const fn number(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failure => 1,
            Exit::InvalidInput => 2,
            Exit::Unavailable => 3,
            Exit::NotFound => 4,
            Exit::Rejected => 5,
            Exit::TimedOut => 6,
            // 128 + SIGINT, as shells report it.
            Exit::Interrupted => 130,
        }
    }

    /// [`Failure`](Exit::Failure) if there is a problem, else [`Success`](Exit::Success).
    pub fn failure_if(problem: bool) -> Self {
        match problem {
            true => Exit::Failure,
            false => Exit::Success,
        }
    }

    /// An error with this exit code.
    pub fn because(self, reason: impl Into<String>) -> Ended {
        let reason = reason.into();
        Ended { exit: self, reason }
    }

    /// An error of a command that had begun to act: its exit code is [`Failure`](Exit::Failure), not [`InvalidInput`](Exit::InvalidInput).
    pub fn had_begun(error: impl Into<anyhow::Error>) -> anyhow::Error {
        let error = error.into();
        match Exit::of(&error) {
            Exit::InvalidInput => Exit::Failure.because(format!("{error:#}")).into(),
            _ => error,
        }
    }

    /// The exit code of an error: [`Failure`](Exit::Failure) unless the error says more.
    pub fn of(error: &anyhow::Error) -> Self {
        Exit::known(error).unwrap_or(Exit::Failure)
    }

    fn known(error: &anyhow::Error) -> Option<Self> {
        if error.is::<HalfDone>() {
            return Some(Exit::Failure);
        }
        let known = |cause: &(dyn std::error::Error + 'static)| {
            if let Some(SessionError::NotReady(_)) = cause.downcast_ref() {
                return Some(Exit::TimedOut);
            }
            if let Some(SessionError::Socket(_) | SessionError::Collective(_)) =
                cause.downcast_ref()
            {
                // The controller had given the rank.
                return Some(Exit::Failure);
            }
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
            // The request may have succeeded; only its output is lost.
            let printed = cause.is::<Unprinted>().then_some(Exit::Failure);
            client.or(ours).or(serve).or(lab).or(printed)
        };
        error.chain().find_map(known)
    }

    fn of_client(error: &ClientError) -> Self {
        match error {
            ClientError::NoAnswer { .. }
            | ClientError::NoneAnswers { .. }
            | ClientError::LostLeader { .. }
            | ClientError::Deposed { .. }
            | ClientError::NoLeader { .. } => Exit::Unavailable,
            ClientError::NotOurs { .. } => Exit::InvalidInput,
            ClientError::EpochOver { .. } => Exit::Rejected,
            // The request may have succeeded; only its answer is lost.
            ClientError::TooLong { .. } => Exit::Failure,
            ClientError::Refused { code, .. } => Exit::of_code(*code),
        }
    }

    /// The exit code of a controller that does not start.
    fn of_serve(error: &ServeError) -> Self {
        match error {
            ServeError::Switch(error) if error.is_silence() => Exit::Unavailable,
            ServeError::Switch(error) if error.is_anothers() => Exit::Rejected,
            ServeError::Switch(_) | ServeError::Keep(_) => Exit::Failure,
            ServeError::Listen { .. }
            | ServeError::NotASocket { .. }
            | ServeError::Open { .. }
            | ServeError::TlsOnUnix { .. }
            | ServeError::Tls(_)
            | ServeError::Program(_)
            | ServeError::Limit(_)
            | ServeError::Store(_) => Exit::InvalidInput,
        }
    }

    fn of_lab(error: &LabError) -> Self {
        match error {
            LabError::NoLab { .. } | LabError::NoNode { .. } => Exit::NotFound,
            LabError::Up { .. } | LabError::Incomplete { .. } | LabError::Inside { .. } => {
                Exit::Rejected
            }
            LabError::Gone { .. }
            | LabError::File { .. }
            | LabError::Ip { .. }
            | LabError::Process { .. }
            | LabError::Stop { .. }
            | LabError::System { .. } => Exit::Failure,
            LabError::Interrupted => Exit::Interrupted,
            LabError::NotRoot
            | LabError::NoProgram { .. }
            | LabError::WhichLab { .. }
            | LabError::Grpc { .. }
            | LabError::FrontPanel { .. }
            | LabError::Tls { .. }
            | LabError::Fabric(_) => Exit::InvalidInput,
        }
    }

    /// The exit code of a gRPC status of the control API.
    pub fn of_code(code: Code) -> Self {
        match code {
            Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented => {
                Exit::InvalidInput
            }
            Code::Unavailable => Exit::Unavailable,
            Code::NotFound => Exit::NotFound,
            Code::AlreadyExists | Code::ResourceExhausted | Code::FailedPrecondition => {
                Exit::Rejected
            }
            Code::DeadlineExceeded => Exit::TimedOut,
            Code::Ok
            | Code::Aborted
            | Code::Cancelled
            | Code::DataLoss
            | Code::Internal
            | Code::OutOfRange
            | Code::Unauthenticated
            | Code::Unknown => Exit::Failure,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.number())
    }
}

/// An error that carries its exit code.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Ended {
    exit: Exit,
    reason: String,
}

/// The errors of a command's arguments and files, before it acts.
pub trait InputErrors<T> {
    /// Gives an error the exit code [`InvalidInput`](Exit::InvalidInput), unless its own is known.
    ///
    /// # Errors
    /// The same.
    fn input(self) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> InputErrors<T> for Result<T, E> {
    fn input(self) -> anyhow::Result<T> {
        self.map_err(|error| {
            let error = error.into();
            match Exit::known(&error) {
                Some(_) => error,
                None => (Exit::InvalidInput.because(error_line::one_line(&error))).into(),
            }
        })
    }
}

/// The context of an error after which part of the work stays done. The exit code is then [`Failure`](Exit::Failure), whatever the cause.
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
    use ultima_agent::SocketError;
    use ultima_api::codes::CODES;

    use super::*;

    #[test]
    fn the_guide_has_the_table() {
        let guide = include_str!("../../docs/guide.md");
        for (exit, text) in ALL {
            let row = format!("| {} | {text} |", exit.number());
            assert!(guide.contains(&row), "{row}");
            assert!(help().contains(text));
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
    fn partly_done_work_is_not_invalid_input() {
        let error = ClientError::Refused {
            code: Code::InvalidArgument,
            message: "h9".into(),
            field: None,
        };
        let half = Err::<(), _>(error).context(HalfDone("one done, then".into()));
        let half = half.context("applying").unwrap_err();
        assert_eq!(Exit::of(&half), Exit::Failure);
        let stopped = anyhow::Error::from(Exit::Unavailable.because("the controller stopped"));
        assert_eq!(Exit::of(&stopped), Exit::Unavailable);
        assert_eq!(Exit::of(&Exit::had_begun(stopped)), Exit::Unavailable);
        let in_use = SocketError::Bind {
            address: "10.0.0.1:21836".parse().expect("an address"),
            error: std::io::ErrorKind::AddrInUse.into(),
        };
        let joined = anyhow::Error::from(SessionError::from(in_use));
        assert_eq!(Exit::of(&joined), Exit::Failure);
        let refused = anyhow::Error::from(Exit::InvalidInput.because("no rank 9"));
        let ended = Exit::had_begun(refused.context("training"));
        assert_eq!(Exit::of(&ended), Exit::Failure);
        assert_eq!(ended.to_string(), "training: no rank 9");
        let addresses = "a,b".into();
        let standing_by = anyhow::Error::from(ClientError::NoLeader {
            addresses,
            problem: String::new(),
        });
        assert_eq!(Exit::of(&standing_by), Exit::Unavailable);
    }

    #[test]
    fn the_status_of_the_controller_sets_the_exit_code() {
        let refused = |code| ClientError::Refused {
            code,
            message: String::new(),
            field: None,
        };
        for (error, exit) in [
            (refused(Code::InvalidArgument), Exit::InvalidInput),
            (refused(Code::NotFound), Exit::NotFound),
            (refused(Code::ResourceExhausted), Exit::Rejected),
            (refused(Code::Unavailable), Exit::Unavailable),
            (refused(Code::Aborted), Exit::Failure),
        ] {
            let error = Err::<(), _>(error).context("creating").unwrap_err();
            assert_eq!(Exit::of(&error), exit, "{error:?}");
        }
        for (exit, _) in ALL {
            let error = anyhow::Error::from(exit.because("h9")).context("job train");
            assert_eq!(Exit::of(&error), exit);
            assert_eq!(format!("{error:#}"), "job train: h9");
        }
    }

    #[test]
    fn an_error_has_exit_code_2_only_if_it_is_of_the_input() {
        let error = || Err::<(), _>(anyhow::anyhow!("not UTF-8").context("job.yaml"));
        assert_eq!(Exit::of(&error().unwrap_err()), Exit::Failure);
        let input = error().input().unwrap_err();
        assert_eq!(Exit::of(&input), Exit::InvalidInput);
        assert_eq!(input.to_string(), "job.yaml: not UTF-8");
        let known = Err::<(), _>(Exit::NotFound.because("h9")).input();
        assert_eq!(Exit::of(&known.unwrap_err()), Exit::NotFound);
    }
}
