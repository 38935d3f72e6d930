//! Where the controller is, for all that ask it something.

use clap::builder::NonEmptyStringValueParser;
use ultima_controller::server::DEFAULT_LISTEN;

/// The variable that says where the controller is; `ultima lab exec` sets it.
pub const VARIABLE: &str = "ULTIMA_CONTROLLER";

/// The controller's address.
#[derive(Clone, clap::Args)]
pub struct ControllerAddress {
    /// Where the controller listens: HOST:PORT, or unix:PATH; of several, all of them, separated by commas
    #[arg(long, global = true, env = VARIABLE, value_name = "ADDR", default_value_t = DEFAULT_LISTEN.to_string(), value_parser = NonEmptyStringValueParser::new())]
    pub controller: String,
}
