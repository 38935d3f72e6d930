//! The wait of a process's ranks until all members of their job have joined.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{Instant, timeout_at};
use ultima_api::client::Client;
use ultima_api::v1 as api;

use super::JoinedRank;
use super::joined::Ready;
use crate::deadline::deadline;
use crate::{Context, SessionError, Start};

/// Ranks after the wait for all members.
pub struct ReadyRanks {
    /// Ranks whose operations may start.
    pub begin: Vec<(JoinedRank, Start)>,
    /// One line for each rank that was removed from its job, or whose job cannot begin.
    pub removed: Vec<String>,
}

/// The reason that ranks do not start.
#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    /// A session ended.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Members are missing.
    #[error("not all members joined within {waited:?}: {missing}")]
    Missing {
        /// The time that the ranks waited.
        waited: Duration,
        /// The members that have not joined.
        missing: String,
    },
    /// A rank whose change was cancelled found no other place.
    #[error("no free rank for host {host} within {waited:?}")]
    NoFreeRank {
        /// The host.
        host: String,
        /// The time that the rank waited.
        waited: Duration,
    },
}

/// The time that ranks have from the request for a place to their first operation.
#[derive(Clone, Copy, Debug)]
pub struct JoinTimeout {
    limit: Duration,
    /// The deadline.
    pub until: Instant,
}

/// Starts now.
impl From<Duration> for JoinTimeout {
    fn from(limit: Duration) -> Self {
        let until = deadline(limit).into();
        JoinTimeout { limit, until }
    }
}

/// Waits until the ranks' operations may start.
///
/// # Errors
/// [`ReadyError`]; the ranks are given back.
pub async fn ready(
    context: &Context,
    mut ranks: Vec<JoinedRank>,
    JoinTimeout { limit, until }: JoinTimeout,
) -> Result<ReadyRanks, ReadyError> {
    let all = ranks.iter_mut().map(|rank| rank.ready(context));
    let error = match timeout_at(until, try_join_all(all)).await {
        Ok(Ok(all)) => {
            let (mut begin, mut removed) = (Vec::new(), Vec::new());
            for (rank, ready) in ranks.into_iter().zip(all) {
                match ready {
                    Ready::Begins(start) => begin.push((rank, start)),
                    Ready::Removed(why) => removed.push(why),
                }
            }
            return Ok(ReadyRanks { begin, removed });
        }
        Ok(Err(error)) => error.into(),
        Err(_) if ranks.iter().any(JoinedRank::is_waiting) => ReadyError::NoFreeRank {
            host: context.host.to_string(),
            waited: limit,
        },
        Err(_) => ReadyError::Missing {
            waited: limit,
            missing: missing(&context.client, &ranks).await,
        },
    };
    for rank in &ranks {
        rank.leave(&context.client).await;
    }
    Err(error)
}

/// The members that have not joined, for an error message.
async fn missing(client: &Client, ranks: &[JoinedRank]) -> String {
    let sessions = ranks.iter().flat_map(JoinedRank::sessions);
    let mut jobs: Vec<&str> = sessions.map(|s| &s.membership.job[..]).collect();
    jobs.sort_unstable();
    jobs.dedup();
    let mut missing = Vec::new();
    for name in &jobs {
        let Ok(job) = client.job(name).await else {
            return "the controller does not answer which".to_owned();
        };
        let of = match jobs.len() {
            1 => String::new(),
            _ => format!(" of {name}"),
        };
        let away = (job.members.iter()).filter(|m| m.state() != api::MemberState::Joined);
        missing.extend(away.map(|member| {
            let note = match member.gave_up {
                true => " (it joined, and gave up waiting)",
                false => "",
            };
            format!("rank {}{of} on {}{note}", member.rank, member.host)
        }));
    }
    match missing.is_empty() {
        true => {
            "all have joined, but one is not connected to the controller; run `ultima job check`"
                .to_owned()
        }
        false => missing.join(", "),
    }
}
