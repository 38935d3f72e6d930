//! Traces as lines of JSON: the first line is a [`Head`], each other one a [`Record`].

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::layout::Layout;
use crate::operation::OperationId;
use crate::rotation::Rotation;

use super::record::Record;

/// The value of `schema` in the first line.
pub const SCHEMA: &str = "ultima-trace";
/// The version of this format.
pub const VERSION: u32 = 1;

/// The clock of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The machine's clock.
    Real,
    /// A simulation's clock.
    Simulated,
}

/// A trace's first line, which readers need for all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`VERSION`].
    pub version: u32,
    /// Real or simulated.
    pub clock: Clock,
    /// The program that wrote it, for people.
    pub title: String,
    /// Ranks of the job.
    pub ranks: u16,
    /// Values of a full slot.
    pub slot_values: u64,
    /// The job's seed, from which rotations are drawn.
    pub seed: u64,
}

impl Head {
    /// Creates the first line for a job with ranks like `config`.
    pub fn new(config: &Config, clock: Clock, title: &str) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            clock,
            title: title.to_owned(),
            ranks: config.ranks,
            slot_values: config.slot_len() as u64,
            seed: config.seed,
        }
    }

    /// Layout of a bucket with this number of encoded values.
    pub fn layout(&self, values: u64) -> Layout {
        Layout::new(values as usize, self.ranks, self.slot_values as usize)
    }

    /// The rotation of `source`'s slots in `id`.
    pub fn rotation(&self, id: OperationId, source: u16) -> Rotation {
        Rotation::new(self.seed, id, source)
    }
}

/// The reason that a line cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Not JSON.
    #[error("not JSON")]
    NotJson,
    /// JSON without the expected fields.
    #[error("{0}")]
    Fields(String),
    /// A first line of another format.
    #[error("schema {schema:?} version {version}; expected {SCHEMA:?} version {VERSION}")]
    Schema {
        /// Its schema.
        schema: String,
        /// Its version.
        version: u32,
    },
    /// An impossible job.
    #[error(
        "{ranks} ranks with slots of {slot_values} values; expected at least 1 of both, and slots below 2^24 values"
    )]
    Job {
        /// Ranks.
        ranks: u16,
        /// Values of a slot.
        slot_values: u64,
    },
    /// A number outside the job, or too large.
    #[error("{what} is {found}; expected a number below {limit}")]
    Range {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The exclusive upper limit.
        limit: u64,
    },
}

impl From<serde_json::Error> for LineError {
    fn from(error: serde_json::Error) -> Self {
        if !error.is_data() {
            return LineError::NotJson;
        }
        // The reader of lines reports the place.
        let text = error.to_string();
        let (problem, _place) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
        LineError::Fields(problem.to_owned())
    }
}

/// Reads a first line.
///
/// # Errors
/// [`LineError`].
pub fn read_head(line: &str) -> Result<Head, LineError> {
    let head: Head = serde_json::from_str(line)?;
    if head.schema != SCHEMA || head.version != VERSION {
        let Head {
            schema, version, ..
        } = head;
        return Err(LineError::Schema { schema, version });
    }
    if head.ranks == 0 || !(1..1 << 24).contains(&head.slot_values) {
        return Err(LineError::Job {
            ranks: head.ranks,
            slot_values: head.slot_values,
        });
    }
    Ok(head)
}

/// Reads another line of the trace with this head. Does not check that slots belong to their shards.
///
/// # Errors
/// [`LineError`].
pub fn read_record(head: &Head, line: &str) -> Result<Record, LineError> {
    use super::record::Happened;
    /// Limit of slots per bucket: a reader stores all of them, and a trace has a line for each.
    const MAX_SLOTS: u64 = 1 << 24;

    let record: Record = serde_json::from_str(line)?;
    let under = |what, found, limit| match found < limit {
        true => Ok(()),
        false => Err(LineError::Range { what, found, limit }),
    };
    let rank = |what, rank: u16| under(what, rank.into(), head.ranks.into());
    rank("rank", record.rank)?;
    match record.happened {
        Happened::Started { values, .. } => {
            under("values", values, head.slot_values * MAX_SLOTS)?;
        }
        Happened::Sent { to, owner, .. } => {
            rank("to", to.unwrap_or(0))?;
            rank("owner", owner)?;
        }
        Happened::Received { source, owner, .. } => {
            rank("source", source)?;
            rank("owner", owner)?;
        }
        _ => {}
    }
    Ok(record)
}

/// Writes a line.
pub(super) fn write<W: Write>(to: &mut W, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, line)?;
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::record::{Fate, Happened, PacketKind, Timer};
    use super::*;
    use crate::stats::ClosedBy;
    use crate::time::Time;

    fn head() -> Head {
        let config = Config::new(1, 1, 0, 4, 42, Duration::from_secs(1));
        Head::new(&config, Clock::Real, "a test")
    }

    fn line(line: &impl Serialize) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes, line).expect("memory takes it");
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let head = head();
        assert_eq!(read_head(&line(&head)).expect("ours"), head);
        let happened = [
            Happened::Started {
                values: 1000,
                t_s: Duration::from_millis(3),
                t_b: Duration::from_millis(5),
                t_c_scatter: Some(Duration::from_nanos(7)),
                t_c_gather: None,
            },
            Happened::Sent {
                kind: PacketKind::Gather,
                to: None,
                owner: 3,
                slot: 9,
                last: true,
            },
            Happened::Received {
                kind: PacketKind::Scatter,
                source: 2,
                owner: 3,
                slot: 9,
                contributions: 1,
                last: false,
                fate: Fate::Trimmed,
            },
            Happened::SlotClosed {
                slot: 9,
                contributions: 3,
                by: ClosedBy::KnownLoss,
            },
            Happened::Timer {
                timer: Timer::EarlyGather,
            },
            Happened::Ended {
                by: ClosedBy::Early,
                shard: ClosedBy::KnownLoss,
                lost_contributions: 1,
                lost_aggregates: 2,
            },
            Happened::Dropped { records: 512 },
        ];
        for happened in happened {
            let record = Record {
                time: Time::from_nanos(123),
                rank: 3,
                step: 4,
                bucket: 5,
                happened,
            };
            let text = line(&record);
            assert_eq!(text.lines().count(), 1);
            assert_eq!(read_record(&head, &text).expect("ours"), record, "{text}");
        }
    }

    #[test]
    fn names_are_those_that_the_format_has() {
        let record = Record {
            time: Time::from_nanos(123),
            rank: 3,
            step: 4,
            bucket: 5,
            happened: Happened::SlotClosed {
                slot: 9,
                contributions: 3,
                by: ClosedBy::KnownLoss,
            },
        };
        assert_eq!(
            line(&record),
            "{\"time\":123,\"rank\":3,\"step\":4,\"bucket\":5,\"event\":\"slot-closed\",\"slot\":9,\
             \"contributions\":3,\"by\":\"known-loss\"}\n"
        );
    }

    #[test]
    fn other_files_and_ranks_that_are_not_are_refused() {
        let refused = |line: &str| read_head(line).expect_err("refused").to_string();
        assert_eq!(refused("x"), "not JSON");
        let written = line(&head());
        assert!(refused(&written.replace("-trace", "-log")).contains("expected \"ultima-trace\""));
        assert!(refused(&written.replace(":4,", ":0,")).contains("0 ranks"));
        let sent = r#"{"time":1,"rank":0,"step":0,"bucket":0,"event":"sent","kind":"gather","to":4,"owner":0,"slot":0,"last":false}"#;
        let error = read_record(&head(), sent).expect_err("refused").to_string();
        assert!(
            error.contains("to is 4") && error.contains("below 4"),
            "{error}"
        );
        assert!(read_record(&head(), &sent.replace("sent", "thought")).is_err());
    }
}
