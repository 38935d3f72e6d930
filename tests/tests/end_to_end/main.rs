//! All crates together, on the embedded switch and on BMv2.

/// Tests of this name on the embedded switch, and on BMv2.
macro_rules! on_both {
    ($($test:ident;)*) => {$(
        mod $test {
            use ultima_tests::needs;
            use ultima_tests::stage::Target;

            #[test]
            fn on_embedded() {
                super::$test(&Target::Sockets);
            }

            #[test]
            fn on_bmv2() {
                if let Some(program) = needs::bmv2() {
                    super::$test(&Target::Bmv2(program));
                }
            }
        }
    )*};
}

mod accounts;
mod admission;
mod bmv2;
mod check;
mod dropped;
mod embedded;
mod epochs;
mod foreign;
mod jobs;
mod losses;
mod moves;
mod operations;
mod order;
mod packet_vectors;
mod ports;
mod ptf;
mod rates;
mod recovery;
mod sealed;
mod slots;
mod spines;
mod stamps;
mod third_party;
mod two_bmv2;
mod vectors;
