//! The tests of `ultima-sim`: one binary, so that they link once.

mod aggregation;
mod background;
mod credit;
mod grid;
mod seeds;
mod stragglers;
mod tar;
mod tcp;
