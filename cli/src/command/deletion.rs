//! Deleting the jobs that a name stands for: all of them first, and then waiting for what is left on switches.

use std::time::Duration;

use anyhow::{Context, Result};
use tonic::Code;
use ultima_controller::client::{Client, ClientError};

use super::wait;
use crate::document::Deleted;
use crate::exit::HalfDone;

/// Deletes these jobs, one after the other, and waits until nothing is left of any of them, if that is asked for: `bound` at most for all together.
///
/// # Errors
/// One cannot be deleted: with those before it named, if there are any. [`TooLate`](crate::exit::Exit::TooLate) with the switches that something
/// is still on: the jobs are deleted all the same.
pub async fn delete(
    client: &Client,
    names: &[String],
    bound: Option<Duration>,
) -> Result<Vec<Deleted>> {
    let mut deleted = one_by_one(names, async |name| client.delete_job(name).await).await?;
    let Some(bound) = bound else {
        return Ok(deleted);
    };
    let pending = deleted
        .iter_mut()
        .flat_map(|job| std::mem::take(&mut job.pending_switches));
    let pending: Vec<String> = pending.collect();
    let left =
        |switches: &str| format!("something is still on {switches}; it goes when they are back");
    wait::settled(client, &pending, bound, left).await?;
    Ok(deleted)
}

async fn one_by_one(
    names: &[String],
    delete: impl AsyncFn(&str) -> Result<Vec<String>, ClientError>,
) -> Result<Vec<Deleted>> {
    let mut deleted = Vec::new();
    for (at, name) in names.iter().enumerate() {
        match delete(name).await {
            Ok(pending_switches) => deleted.push(Deleted {
                name: name.clone(),
                pending_switches,
            }),
            Err(error) if at == 0 => return Err(error.into()),
            // Somebody else has deleted it, as was asked for here.
            Err(ClientError::Refused {
                code: Code::NotFound,
                ..
            }) => {}
            // What stopped this one stops the others, too: the store, or the controller as a whole.
            Err(error) => {
                let (done, rest) = names.split_at(at);
                let (perhaps, not) = rest.split_at(usize::from(error.may_be_done()));
                let done = HalfDone(half_done(done, perhaps, not));
                return Err(error).context(done);
            }
        }
    }
    Ok(deleted)
}

fn half_done(done: &[String], perhaps: &[String], not: &[String]) -> String {
    let part = |(what, names): (&str, &[String])| {
        (!names.is_empty()).then(|| format!("{what}{}", names.join(", ")))
    };
    let parts = [("deleted ", done), ("perhaps ", perhaps), ("not ", not)];
    let parts: Vec<String> = parts.into_iter().filter_map(part).collect();
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// What is said, and the exit code, where the third of four is refused so.
    async fn third_fails(code: Code) -> (String, Exit) {
        let names = ["a", "b", "c", "d"].map(String::from);
        let delete = async |name: &str| match name {
            "c" => Err(ClientError::Refused {
                code,
                message: "why".into(),
                field: None,
            }),
            _ => Ok(Vec::new()),
        };
        let error = one_by_one(&names, delete).await.err().expect("one fails");
        (format!("{error:#}"), Exit::of(&error))
    }

    #[tokio::test]
    async fn what_was_deleted_before_it_failed_is_said() {
        let (said, exit) = third_fails(Code::FailedPrecondition).await;
        assert_eq!((&*said, exit), ("deleted a, b; not c, d: why", Exit::Found));
        let (said, exit) = third_fails(Code::Unavailable).await;
        let known = "deleted a, b; perhaps c; not d: why";
        assert_eq!((&*said, exit), (known, Exit::Found));
    }

    #[tokio::test]
    async fn what_somebody_else_has_deleted_stops_nothing() {
        let names = ["a", "b", "c"].map(String::from);
        let delete = async |name: &str| match name {
            "b" => Err(ClientError::Refused {
                code: Code::NotFound,
                message: "why".into(),
                field: None,
            }),
            _ => Ok(Vec::new()),
        };
        let deleted = one_by_one(&names, delete).await.unwrap();
        let deleted: Vec<&str> = deleted.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(deleted, ["a", "c"]);
    }

    #[tokio::test]
    async fn what_fails_at_once_is_said_as_it_is() {
        let delete = async |_: &str| {
            Err(ClientError::Refused {
                code: Code::NotFound,
                message: "there is no job \"a\"".into(),
                field: None,
            })
        };
        let names = ["a", "b"].map(String::from);
        let error = one_by_one(&names, delete).await.err().expect("it fails");
        assert_eq!(error.to_string(), "there is no job \"a\"");
        assert_eq!(Exit::of(&error), Exit::NotThere);
    }
}
