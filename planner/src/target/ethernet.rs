//! Speeds and forward error correction of front-panel ports.

use std::fmt;
use std::str::FromStr;

/// A port's speed in Gbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Speed(u16);

#[allow(missing_docs)] // The names are the documentation.
impl Speed {
    pub const G1: Speed = Speed(1);
    pub const G10: Speed = Speed(10);
    pub const G25: Speed = Speed(25);
    pub const G40: Speed = Speed(40);
    pub const G50: Speed = Speed(50);
    pub const G100: Speed = Speed(100);
    pub const G200: Speed = Speed(200);
    pub const G400: Speed = Speed(400);
}

impl Speed {
    /// The lane speed of a port with this many lanes, with its modulation: NRZ up to 25G, PAM4
    /// above.
    pub(crate) fn of_lanes(self, lanes: u8) -> String {
        let lane = self.0 / u16::from(lanes.max(1));
        let levels = if lane <= 25 { "NRZ" } else { "PAM4" };
        format!("{lane}G ({levels})")
    }

    /// The speed in bit/s.
    pub const fn bits_per_second(self) -> u64 {
        self.0 as u64 * 1_000_000_000
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}G", self.0)
    }
}

impl FromStr for Speed {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let speed = text.strip_suffix('G').and_then(|it| it.parse().ok());
        let speed = speed.map(Speed).filter(|it| it.to_string() == text);
        speed.ok_or(())
    }
}

/// A port's forward error correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fec {
    /// No error correction.
    Off,
    /// Firecode, also called BASE-R (IEEE 802.3 clause 74).
    FireCode,
    /// Reed-Solomon (clauses 91, 108 and 119).
    ReedSolomon,
}

impl Fec {
    /// All codes.
    pub const ALL: [Fec; 3] = [Fec::Off, Fec::FireCode, Fec::ReedSolomon];

    /// True if ports of this speed support the code: Firecode on lanes of 10G and 25G, Reed-Solomon
    /// on lanes of 25G and above.
    pub(crate) fn suits(self, speed: Speed) -> bool {
        match self {
            Fec::Off => speed < Speed::G200,
            Fec::FireCode => matches!(speed, Speed::G10 | Speed::G25 | Speed::G40 | Speed::G50),
            Fec::ReedSolomon => !matches!(speed, Speed::G1 | Speed::G10 | Speed::G40),
        }
    }

    /// The default code of a speed: the one that its links need with any cable.
    pub fn usual(speed: Speed) -> Fec {
        match Fec::ReedSolomon.suits(speed) {
            true => Fec::ReedSolomon,
            false => Fec::Off,
        }
    }
}

/// The code's name in fabric files.
impl fmt::Display for Fec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fec::Off => "none",
            Fec::FireCode => "fc",
            Fec::ReedSolomon => "rs",
        })
    }
}

impl FromStr for Fec {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Fec::ALL
            .into_iter()
            .find(|it| it.to_string() == text)
            .ok_or(())
    }
}
