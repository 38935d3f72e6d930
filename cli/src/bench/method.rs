//! The collectives that a run compares.

use serde::Serialize;

/// A collective that a run compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Ultima; the switch copies results to all ranks
    UltimaMulticast,
    /// Ultima; each rank sends its results to all others
    UltimaUnicast,
    /// PyTorch's all_reduce with Gloo
    GlooRing,
    /// Halving-doubling over Gloo's TCP
    HalvingDoubling,
    /// Transpose AllReduce over Gloo's TCP
    TarTcp,
    /// Open MPI
    OpenMpi,
}

impl Method {
    pub const ALL: [Method; 6] = [
        Method::UltimaMulticast,
        Method::UltimaUnicast,
        Method::GlooRing,
        Method::HalvingDoubling,
        Method::TarTcp,
        Method::OpenMpi,
    ];
    /// The name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Method::UltimaMulticast => "ultima-multicast",
            Method::UltimaUnicast => "ultima-unicast",
            Method::GlooRing => "gloo-ring",
            Method::HalvingDoubling => "halving-doubling",
            Method::TarTcp => "tar-tcp",
            Method::OpenMpi => "open-mpi",
        }
    }

    /// True if the method averages DDP's gradients.
    pub fn trains(self) -> bool {
        matches!(self, Method::UltimaMulticast | Method::GlooRing)
    }

    pub fn is_ultima(self) -> bool {
        matches!(self, Method::UltimaMulticast | Method::UltimaUnicast)
    }

    /// True if the method runs with so many ranks.
    pub fn takes(self, ranks: u16) -> bool {
        self != Method::HalvingDoubling || ranks.is_power_of_two()
    }
}
