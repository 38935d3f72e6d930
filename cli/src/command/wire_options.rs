//! Options for the settings of queues and wires.

use anyhow::{Context, Result};
use clap::Arg;
use ultima_switch::tm::WireChange;

/// Settings of queues and wires; the value `none` removes a setting.
#[derive(clap::Args, Debug, Default)]
pub struct WireOptions {
    /// Rate in bits per second, such as 10G [default: none, unlimited]
    #[arg(long, value_name = "BITS/S", help_heading = HEADING)]
    rate: Option<String>,
    /// Rate in packets per second, such as 100 or 10k, for frames of any length [default: none, unlimited]
    #[arg(long, value_name = "PACKETS/S", help_heading = HEADING)]
    packet_rate: Option<String>,
    /// Flows of other jobs that share --rate, as SHARE:BYTES[:fixed]: the share of the rate that they need, and the mean size of one
    /// [default: none]
    #[arg(long, value_name = "MODEL", help_heading = HEADING)]
    background: Option<String>,
    /// One-way delay, such as 500us [default: 0s]
    #[arg(long, value_name = "TIME", help_heading = HEADING)]
    delay: Option<String>,
    /// Random delay of each frame, added to --delay: normal:DEVIATION, uniform:SPREAD, pareto:MEAN:SHAPE or
    /// lognormal:MEAN:SIGMA [default: none]
    #[arg(long, value_name = "MODEL", help_heading = HEADING)]
    jitter: Option<String>,
    /// Let frames with less delay overtake earlier ones, as netem does [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          help_heading = HEADING)]
    reorder: Option<String>,
    /// Loss: probability P; P:LEN for bursts of LEN frames on average; ge:P:R[:BAD[:GOOD]] for Gilbert-Elliott; or
    /// field:OFFSET:BYTES:A..B for frames whose integer at byte OFFSET is in A..B. Repeatable [default: none]
    #[arg(long, value_name = "MODEL", help_heading = HEADING)]
    loss: Vec<String>,
    /// Queue size of each priority, in bytes [default: 1M]
    #[arg(long, value_name = "BYTES", help_heading = HEADING)]
    queue: Option<String>,
    /// Queue size of each priority, in packets [default: none, limited by --queue only]
    #[arg(long, value_name = "NUMBER", help_heading = HEADING)]
    queue_packets: Option<String>,
    /// Mark ECN-capable frames if the queue holds more than packets:NUMBER, bytes:SIZE or time:SPAN [default: none]
    #[arg(long, value_name = "THRESHOLD", help_heading = HEADING)]
    ecn: Option<String>,
}

const HEADING: &str = "Queues and wires";

/// Rewords the help of a setting for commands that leave it as it is unless the option is given.
pub fn unchanged_by_default(argument: Arg) -> Arg {
    let help = argument.get_help().map(ToString::to_string);
    match help
        .as_deref()
        .and_then(|help| help.split_once(" [default: "))
    {
        Some((text, _)) if argument.get_help_heading() == Some(HEADING) => {
            argument.help(format!("{text} [default: unchanged]"))
        }
        _ => argument,
    }
}

impl WireOptions {
    /// The settings that the options change.
    ///
    /// # Errors
    /// An option has an invalid value.
    pub fn change(&self) -> Result<WireChange> {
        let mut change = WireChange::default();
        let settings = [
            ("rate", &self.rate),
            ("packet-rate", &self.packet_rate),
            ("background", &self.background),
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
