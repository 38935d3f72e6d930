//! A wire's settings as options.

use anyhow::{Context, Result};
use ultima_switch::tm::WireChange;

/// Settings of queues and wires; `none` takes one off.
#[derive(clap::Args, Debug, Default)]
pub struct WireOptions {
    /// Rate [default: none, frames take no time]
    #[arg(long, value_name = "BITS/S", help_heading = HEADING)]
    rate: Option<String>,
    /// Delay, such as 500us [default: 0s]
    #[arg(long, value_name = "TIME", help_heading = HEADING)]
    delay: Option<String>,
    /// Time added to each frame's delay: normal:DEVIATION, uniform:SPREAD, pareto:MEAN:SHAPE or
    /// lognormal:MEAN:SIGMA [default: none]
    #[arg(long, value_name = "MODEL", help_heading = HEADING)]
    jitter: Option<String>,
    /// Frames with less delay overtake those before them, as with netem [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          help_heading = HEADING)]
    reorder: Option<String>,
    /// Loss: P; P:LEN for bursts of LEN frames on average; ge:P:R[:BAD[:GOOD]] for Gilbert-Elliott; or
    /// field:OFFSET:BYTES:A..B for frames whose integer at byte OFFSET lies in A..B; may be repeated
    #[arg(long, value_name = "MODEL", help_heading = HEADING)]
    loss: Vec<String>,
    /// Queue of each priority, in bytes [default: 1M]
    #[arg(long, value_name = "BYTES", help_heading = HEADING)]
    queue: Option<String>,
    /// Queue of each priority, in packets [default: none, as many as the bytes allow]
    #[arg(long, value_name = "NUMBER", help_heading = HEADING)]
    queue_packets: Option<String>,
    /// Mark ECN-capable frames that meet more than packets:NUMBER, bytes:SIZE or time:SPAN in the queue
    /// [default: none]
    #[arg(long, value_name = "THRESHOLD", help_heading = HEADING)]
    ecn: Option<String>,
}

const HEADING: &str = "Queues and wires";

impl WireOptions {
    /// What the options say.
    ///
    /// # Errors
    /// If one has a value that it cannot have.
    pub fn change(&self) -> Result<WireChange> {
        let mut change = WireChange::default();
        let settings = [
            ("rate", &self.rate),
            ("delay", &self.delay),
            ("jitter", &self.jitter),
            ("reorder", &self.reorder),
            ("queue", &self.queue),
            ("queue-packets", &self.queue_packets),
            ("ecn", &self.ecn),
        ];
        let given = settings
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)))
            .chain(self.loss.iter().map(|loss| ("loss", loss)));
        for (name, value) in given {
            change
                .set(name, value)
                .with_context(|| format!("invalid value '{value}' for '--{name}'"))?;
        }
        Ok(change)
    }
}
