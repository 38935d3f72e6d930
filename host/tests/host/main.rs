//! The tests of `ultima-host`: one binary, so that they link once.

mod adversary;
mod allocation;
mod answers;
mod budget;
mod causes;
mod coding;
mod colocated;
mod common;
mod counted;
mod elements;
mod exact;
mod exactness;
mod hierarchical;
mod loss;
mod memory;
mod port;
mod probes;
mod rates;
mod recycling;
mod safeguards;
mod sealed;
mod statistics;
mod telling;
mod timeouts;
mod trace;
mod udp;

use ultima_testing::heap::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
