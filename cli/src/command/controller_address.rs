//! Where the controller is, for all that ask it something.

use ultima_controller::server::DEFAULT_LISTEN;

use ultima_console::units;

/// The variable that says where the controller is; `ultima lab exec` sets it.
pub const VARIABLE: &str = "ULTIMA_CONTROLLER";

/// The controller's address.
#[derive(Clone, clap::Args)]
pub struct ControllerAddress {
    /// Where the controller listens: HOST:PORT, or unix:PATH; of several, all of them, separated by commas
    #[arg(long, global = true, env = VARIABLE, value_name = "ADDR", default_value_t = DEFAULT_LISTEN.to_string(), value_parser = addresses)]
    pub controller: String,
}

/// Addresses with commas between them, as they are.
fn addresses(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(format!(
            "expected HOST:PORT or unix:PATH, such as 10.0.0.2:9555, and {VARIABLE} with such a value or unset"
        ));
    }
    let mut each = text.split(',').map(str::trim);
    each.try_for_each(|address| units::control_address(address).map(drop))?;
    Ok(text.to_owned())
}
