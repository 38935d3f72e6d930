//! The crates together, on the embedded switch and, where it is installed, on BMv2: packets, jobs, other parties' clients.

mod admission;
mod bmv2;
mod check;
mod dropped;
mod embedded;
mod jobs;
mod losses;
mod order;
mod packet_vectors;
mod recovery;
mod stamps;
mod third_party;
