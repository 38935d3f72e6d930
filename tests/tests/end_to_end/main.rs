//! The crates together, on the embedded switch and, where it is installed, on BMv2: packets, jobs, other parties' clients.

/// Each test on the embedded switch, and on BMv2 where it is installed.
macro_rules! on_both {
    ($($test:ident, $embedded:ident, $bmv2:ident;)*) => {$(
        #[test]
        fn $embedded() {
            $test(&ultima_tests::stage::Target::Sockets);
        }

        #[test]
        fn $bmv2() {
            if let Some(program) = ultima_tests::needs::bmv2() {
                $test(&ultima_tests::stage::Target::Bmv2(program));
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
