//! Pcap files that a port replays.

#![cfg_attr(fuzzing, no_main)]

ultima_fuzz::target!(pcap);
