//! The tests of `ultima-host`: one binary, so that they link once.

mod adversary;
mod allocation;
mod budget;
mod causes;
mod coding;
mod colocated;
mod common;
mod credit;
mod departures;
mod elements;
mod exact;
mod exactness;
mod hierarchical;
mod hostile;
mod loss;
mod loss_detection;
mod memory;
mod outcomes;
mod port;
mod probes;
mod rates;
mod recycling;
mod reordering;
mod safeguards;
mod sealed;
mod statistics;
mod timeouts;
mod trace;
mod udp;

use ultima_testing::heap::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
