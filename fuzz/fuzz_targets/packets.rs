//! Frames through programs.

#![cfg_attr(fuzzing, no_main)]

ultima_fuzz::target!(packets);
