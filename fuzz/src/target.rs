//! A target's program.

/// The `main` of a target that is the function of this name: LLVM's fuzzer under cargo-fuzz, else a
/// program that runs over the files that it is given, with a stable toolchain.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::process::ExitCode {
            $crate::target::run($crate::$name)
        }
    };
}

/// Runs over the files that the command line names. Exit code 2: one cannot be read.
#[cfg(not(fuzzing))]
pub fn run(target: fn(&[u8])) -> std::process::ExitCode {
    for path in std::env::args_os().skip(1) {
        match std::fs::read(&path) {
            Ok(input) => target(&input),
            Err(error) => {
                eprintln!("error: {}: {error}", path.display());
                return 2.into();
            }
        }
    }
    0.into()
}
