//! The option for the time that a switch polls.

use std::time::Duration;

use ultima_console::units;

#[derive(clap::Args)]
pub struct PollOption {
    /// Poll for packets while they are less than this apart on average, and sleep otherwise. A longer time lowers latency
    /// and costs CPU time
    #[arg(long, value_name = "TIME", default_value = "30us", value_parser = units::duration)]
    pub poll: Duration,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use ultima_switch::config;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        option: PollOption,
    }

    #[test]
    fn the_default_is_the_switchs() {
        let poll = |line: &[&str]| Line::parse_from(line).option.poll;
        assert_eq!(poll(&["ultima"]), config::POLL);
        assert_eq!(poll(&["ultima", "--poll", "2ms"]), Duration::from_millis(2));
    }
}
