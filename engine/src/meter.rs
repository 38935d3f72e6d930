//! Two-rate three-colour meters, colour-blind (RFC 2698), refilled in whole microseconds as in
//! BMv2. Time comes from the caller.

use super::counter::cell;
use super::error::ControlError;

/// A packet's colour, as the number that v1model gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// Within the committed rate, or the meter is not configured.
    Green = 0,
    /// Above the committed rate, within the peak rate.
    Yellow = 1,
    /// Above the peak rate.
    Red = 2,
}

impl Color {
    /// Returns the name of a colour's number.
    pub(super) fn name(number: u64) -> &'static str {
        match number {
            0 => "green",
            1 => "yellow",
            _ => "red",
        }
    }
}

/// The unit of a meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeterUnit {
    /// Rates are in packets per second, bursts in packets.
    Packets,
    /// Rates are in bytes per second, bursts in bytes.
    Bytes,
}

/// Rates and bursts of one meter cell, in the meter's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeterConfig {
    /// Committed information rate, units per second.
    pub cir: u64,
    /// Committed burst, units.
    pub cburst: u64,
    /// Peak information rate, units per second; at least `cir`.
    pub pir: u64,
    /// Peak burst, units.
    pub pburst: u64,
}

impl MeterConfig {
    /// Checks what a meter of this name is to be configured with.
    ///
    /// # Errors
    /// The peak rate is below the committed rate.
    pub fn check(&self, name: &str) -> Result<(), ControlError> {
        if self.pir >= self.cir {
            return Ok(());
        }
        Err(ControlError::invalid(format!(
            "meter {name}: the peak rate must not be below the committed rate"
        )))
    }

    /// Tokens in full buckets: the peak and the committed one.
    fn depths(self) -> [u128; 2] {
        [self.pburst, self.cburst].map(|burst| u128::from(burst) * MICRO)
    }
}

/// Tokens are kept in millionths of a unit: a rate per second adds `rate` of them a microsecond.
const MICRO: u128 = 1_000_000;

/// Takes tokens for some units from a bucket. Returns false, and takes none, if there are too few.
fn take(tokens: &mut u128, units: u32) -> bool {
    let left = tokens.checked_sub(u128::from(units) * MICRO);
    *tokens = left.unwrap_or(*tokens);
    left.is_some()
}

/// One meter: unconfigured (every packet is green) or two token buckets.
#[derive(Debug, Clone, Default)]
pub struct MeterCell {
    config: Option<MeterConfig>,
    /// Tokens of the peak and the committed bucket.
    tokens: [u128; 2],
    last_us: u64,
}

impl MeterCell {
    /// Its configuration; `None` colours every packet green.
    pub fn config(&self) -> Option<MeterConfig> {
        self.config
    }

    /// Configures it with full buckets, or removes the configuration.
    ///
    /// # Errors
    /// The peak rate is below the committed rate.
    pub fn configure(
        &mut self,
        name: &str,
        config: Option<MeterConfig>,
    ) -> Result<(), ControlError> {
        if let Some(config) = config {
            config.check(name)?;
        }
        self.config = config;
        self.tokens = config.map_or([0; 2], MeterConfig::depths);
        Ok(())
    }

    /// Colours a packet of `bytes` at `now_us`, microseconds since the switch started.
    pub(super) fn execute(&mut self, unit: MeterUnit, bytes: u32, now_us: u64) -> Color {
        let elapsed = now_us.saturating_sub(self.last_us);
        self.last_us = self.last_us.max(now_us);
        let Some(config) = self.config else {
            return Color::Green;
        };
        let buckets = self.tokens.iter_mut().zip([config.pir, config.cir]);
        for ((tokens, rate), depth) in buckets.zip(config.depths()) {
            let gained = u128::from(rate) * u128::from(elapsed);
            *tokens = (*tokens + gained).min(depth);
        }
        let units = match unit {
            MeterUnit::Packets => 1,
            MeterUnit::Bytes => bytes,
        };
        let [peak, committed] = &mut self.tokens;
        if !take(peak, units) {
            Color::Red
        } else if !take(committed, units) {
            Color::Yellow
        } else {
            Color::Green
        }
    }
}

/// An indirect meter: cells that the program addresses by index.
#[derive(Debug, Clone)]
pub struct Meter {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) unit: MeterUnit,
    pub(super) cells: Vec<MeterCell>,
}

impl Meter {
    /// Returns the meter's unit.
    pub fn unit(&self) -> MeterUnit {
        self.unit
    }

    /// All cells, by index.
    pub fn cells(&self) -> &[MeterCell] {
        &self.cells
    }

    /// The configuration of one cell; `None` colours every packet green.
    ///
    /// # Errors
    /// The index is outside the array.
    pub fn read(&self, index: u64) -> Result<Option<MeterConfig>, ControlError> {
        let found = cell(index, self.cells.len());
        let found = found.map(|at| self.cells[at].config());
        found.ok_or_else(|| self.outside(index))
    }

    /// Configures one cell; `None` removes its configuration.
    ///
    /// # Errors
    /// The index is outside the array, or the rates contradict each other.
    pub fn write(&mut self, index: u64, config: Option<MeterConfig>) -> Result<(), ControlError> {
        let found = cell(index, self.cells.len());
        let found = found.ok_or_else(|| self.outside(index))?;
        self.cells[found].configure(&self.name, config)
    }

    /// Colours a packet; `None` if the index is outside the array, which changes nothing.
    pub(super) fn execute(&mut self, index: u64, bytes: u32, now_us: u64) -> Option<Color> {
        let at = cell(index, self.cells.len())?;
        Some(self.cells[at].execute(self.unit, bytes, now_us))
    }

    fn outside(&self, index: u64) -> ControlError {
        ControlError::index(&format!("meter {}", self.name), index, self.cells.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(cir: u64, cburst: u64, pir: u64, pburst: u64) -> MeterCell {
        let mut cell = MeterCell::default();
        cell.configure(
            "m",
            Some(MeterConfig {
                cir,
                cburst,
                pir,
                pburst,
            }),
        )
        .unwrap();
        cell
    }

    #[test]
    fn bursts_are_spent_before_colours_change() {
        let mut cell = cell(1, 2, 1, 3);
        let colors: Vec<_> = (0..5)
            .map(|_| cell.execute(MeterUnit::Packets, 1500, 0))
            .collect();
        use Color::*;
        assert_eq!(colors, [Green, Green, Yellow, Red, Red]);
    }

    #[test]
    fn tokens_return_at_the_rate() {
        let mut cell = cell(1_000, 100, 2_000, 200);
        assert_eq!(cell.execute(MeterUnit::Bytes, 100, 0), Color::Green);
        assert_eq!(cell.execute(MeterUnit::Bytes, 100, 0), Color::Yellow);
        assert_eq!(cell.execute(MeterUnit::Bytes, 1, 0), Color::Red);
        // 50 ms: 50 committed and 100 peak bytes.
        assert_eq!(cell.execute(MeterUnit::Bytes, 50, 50_000), Color::Green);
        assert_eq!(cell.execute(MeterUnit::Bytes, 50, 50_000), Color::Yellow);
        assert_eq!(cell.execute(MeterUnit::Bytes, 1, 50_000), Color::Red);
        // A long pause fills no more than the bursts.
        assert_eq!(cell.execute(MeterUnit::Bytes, 101, u64::MAX), Color::Yellow);
    }

    #[test]
    fn a_red_packet_takes_no_committed_tokens() {
        let mut cell = cell(1, 1_000, 1, 100);
        assert_eq!(cell.execute(MeterUnit::Bytes, 500, 0), Color::Red);
        assert_eq!(cell.execute(MeterUnit::Bytes, 100, 0), Color::Green);
    }

    #[test]
    fn time_may_stand_still_or_step_back() {
        let mut cell = cell(1_000_000, 1, 1_000_000, 1);
        assert_eq!(cell.execute(MeterUnit::Packets, 1, 10), Color::Green);
        assert_eq!(cell.execute(MeterUnit::Packets, 1, 5), Color::Red);
        assert_eq!(cell.execute(MeterUnit::Packets, 1, 11), Color::Green);
    }

    #[test]
    fn unconfigured_is_green_and_rates_are_checked() {
        let mut cell = MeterCell::default();
        assert_eq!(cell.execute(MeterUnit::Bytes, u32::MAX, 0), Color::Green);
        let wrong = MeterConfig {
            cir: 2,
            cburst: 1,
            pir: 1,
            pburst: 1,
        };
        assert!(cell.configure("m", Some(wrong)).is_err());
        assert_eq!(cell.config(), None);
    }
}
