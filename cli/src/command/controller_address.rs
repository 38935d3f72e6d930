//! The `--controller` option of all commands that talk to a controller.

use ultima_api::address::DEFAULT_LISTEN;

use ultima_console::units;

/// The environment variable for `--controller`; `ultima lab exec` sets it.
pub const VARIABLE: &str = "ULTIMA_CONTROLLER";

/// The address of the controller.
#[derive(Clone, clap::Args)]
pub struct ControllerAddress {
    /// Address of the controller: HOST:PORT or unix:PATH; of several controllers, separated by commas
    #[arg(long, global = true, env = VARIABLE, value_name = "ADDR", default_value_t = DEFAULT_LISTEN.to_string(), value_parser = addresses)]
    pub controller: String,
}

/// Checks a comma-separated list of addresses, and returns it as it is.
fn addresses(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(format!(
            "expected HOST:PORT or unix:PATH, such as 10.0.0.2:9555; set {VARIABLE} to such an address, or unset it"
        ));
    }
    let mut each = text.split(',').map(str::trim);
    let checked = each.try_for_each(|address| units::control_address(address).map(drop));
    checked.map_err(|why| match std::env::var(VARIABLE) {
        Ok(variable) if variable == text => format!("{why}; {VARIABLE} has this value"),
        _ => why,
    })?;
    Ok(text.to_owned())
}
