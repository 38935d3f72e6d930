//! The simulated algorithms.

use serde::{Deserialize, Serialize};

use crate::schedule::{DoubleTree, Exchange, ParameterServer, Ring, Schedule, Transpose};

/// An AllReduce algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Transpose AllReduce over the bounded transport of `ultima-host`.
    Tar,
    /// The same in two dimensions: within groups, then across them.
    #[serde(rename = "tar-2d")]
    Tar2d,
    /// Transpose AllReduce over TCP.
    TarTcp,
    /// Ring, over TCP.
    Ring,
    /// Two binary trees, pipelined, over TCP.
    Tree,
    /// Recursive halving and doubling, over TCP.
    HalvingDoubling,
    /// Recursive exchange with base 4, over TCP.
    Bcube,
    /// One parameter server on the host of rank 0, over TCP.
    ParameterServer,
    /// Switches add the hosts' values, as in SwitchML: an upper bound.
    SwitchAggregation,
}

impl Algorithm {
    /// All variants.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Tar,
        Algorithm::Tar2d,
        Algorithm::TarTcp,
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::HalvingDoubling,
        Algorithm::Bcube,
        Algorithm::ParameterServer,
        Algorithm::SwitchAggregation,
    ];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Tar => "tar",
            Algorithm::Tar2d => "tar-2d",
            Algorithm::TarTcp => "tar-tcp",
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::Bcube => "bcube",
            Algorithm::ParameterServer => "parameter-server",
            Algorithm::SwitchAggregation => "switch-aggregation",
        }
    }

    /// The messages of algorithms over TCP.
    pub(crate) fn schedule(self, ranks: u32, bytes: u64) -> Option<Box<dyn Schedule>> {
        Some(match self {
            Algorithm::Tar | Algorithm::Tar2d | Algorithm::SwitchAggregation => return None,
            Algorithm::TarTcp => Box::new(Transpose::new(ranks, bytes)),
            Algorithm::Ring => Box::new(Ring::new(ranks, bytes)),
            Algorithm::Tree => Box::new(DoubleTree::new(ranks, bytes)),
            Algorithm::HalvingDoubling => Box::new(Exchange::new(2, ranks, bytes)),
            Algorithm::Bcube => Box::new(Exchange::new(4, ranks, bytes)),
            Algorithm::ParameterServer => Box::new(ParameterServer::new(ranks, bytes)),
        })
    }
}
