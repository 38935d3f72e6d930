//! Changes to the store. Each is applied as a whole or not at all.

use serde_json::Value;

use super::JobRecord;

/// A change to the committed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds jobs, all or none. Their ids count as given out in this order.
    Put(Vec<JobRecord>),
    /// Replaces the records of stored jobs, each by itself. A job that was removed meanwhile is not
    /// added again.
    Update(Vec<JobRecord>),
    /// Removes the jobs with these ids.
    Remove(Vec<u16>),
    /// Drains an element of the fabric, or ends its drain.
    Drain {
        /// The element's name.
        element: String,
        /// True to drain it, false to end the drain.
        drained: bool,
    },
    /// Replaces the recent events, which only the controller reads.
    Events(Vec<u8>),
}

/// A job's record as JSON.
pub(super) fn text(job: &JobRecord) -> Vec<u8> {
    serde_json::to_vec(job).expect("records are numbers, names and lists of these")
}

/// A job's record as JSON, with the fields of its `former` record that this version does not know.
pub(super) fn text_over(former: &[u8], job: &JobRecord) -> Vec<u8> {
    let Ok(former) = serde_json::from_slice::<Value>(former) else {
        return text(job);
    };
    let mut now = serde_json::to_value(job).expect("records are numbers, names and lists of these");
    keep_unknown(former, &mut now);
    now.to_string().into_bytes()
}

/// Adds the fields of `former` that `now` lacks: a record is written with all fields of its version.
fn keep_unknown(former: Value, now: &mut Value) {
    match (former, now) {
        (Value::Object(former), Value::Object(now)) => {
            for (name, former) in former {
                match now.get_mut(&name) {
                    Some(now) => keep_unknown(former, now),
                    None => drop(now.insert(name, former)),
                }
            }
        }
        // Members and shares keep their places while their number stays the same.
        (Value::Array(former), Value::Array(now)) if former.len() == now.len() => {
            let both = former.into_iter().zip(now);
            both.for_each(|(former, now)| keep_unknown(former, now));
        }
        _ => {}
    }
}
