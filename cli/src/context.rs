//! Contexts: named controllers of a configuration file, for users of several testbeds.

use std::collections::BTreeMap;
use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap_complete::{ArgValueCandidates, CompletionCandidate};
use serde::Deserialize;

/// The environment variable with the file's path.
const FILE: &str = "ULTIMA_CONFIG";

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The context of commands that name none.
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// A controller, and the files for TLS to it. Relative paths are relative to the file's folder.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub controller: String,
    pub tls_ca: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
}

/// The context of this name, or the current one; none without a file or without a current context.
///
/// # Errors
/// The file cannot be read or is invalid, or no context has the name.
pub fn find(name: Option<&str>) -> Result<Option<Context>> {
    let Some(path) = path() else {
        return match name {
            Some(name) => {
                bail!("--context {name}: there is no HOME for the configuration file; set {FILE}")
            }
            None => Ok(None),
        };
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => choose(&text, &path, name),
        Err(error) if error.kind() == ErrorKind::NotFound && name.is_none() => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Completes the names of all contexts.
pub fn candidates() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let names = names().unwrap_or_default().into_iter();
        names.map(CompletionCandidate::new).collect()
    })
}

/// The names of all contexts.
///
/// # Errors
/// The file cannot be read or is invalid.
pub fn names() -> Result<Vec<String>> {
    let Some(path) = path() else {
        return Ok(Vec::new());
    };
    let config = parse(&std::fs::read_to_string(&path)?, &path)?;
    Ok(config.contexts.into_keys().collect())
}

fn path() -> Option<PathBuf> {
    let of = |variable| env::var_os(variable).filter(|value| !value.is_empty());
    let folder = || match of("XDG_CONFIG_HOME") {
        Some(folder) => Some(PathBuf::from(folder)),
        None => Some(PathBuf::from(of("HOME")?).join(".config")),
    };
    match of(FILE) {
        Some(file) => Some(file.into()),
        None => Some(folder()?.join("ultima").join("config.yaml")),
    }
}

fn parse(text: &str, path: &Path) -> Result<Config> {
    serde_yaml::from_str(text).map_err(|error| {
        // The lines after the first show the text.
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        anyhow!("{}: {line}", path.display())
    })
}

fn choose(text: &str, path: &Path, name: Option<&str>) -> Result<Option<Context>> {
    let place = path.display();
    let config = parse(text, path)?;
    let Some(name) = name.or(config.current.as_deref()) else {
        return Ok(None);
    };
    let Some(context) = config.contexts.get(name) else {
        let names: Vec<&str> = config.contexts.keys().map(String::as_str).collect();
        let names = match &names[..] {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        bail!("{place}: no context is named {name:?}; there are: {names}");
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let at = |file: &Option<PathBuf>| file.as_ref().map(|file| folder.join(file));
    Ok(Some(Context {
        controller: context.controller.clone(),
        tls_ca: at(&context.tls_ca),
        tls_cert: at(&context.tls_cert),
        tls_key: at(&context.tls_key),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        current: lab
        contexts:
          lab: { controller: 'unix:/run/lab.sock' }
          rack: { controller: '192.0.2.1:9555', tls_ca: ca.pem, tls_cert: /keys/me.pem, tls_key: me.key }
    ";

    #[test]
    fn a_context_is_found_by_name_or_is_the_current_one() {
        let find = |name| choose(FILE, Path::new("/etc/u/config.yaml"), name);
        let lab = find(None).expect("valid").expect("the current one");
        assert_eq!(
            (&lab.controller[..], lab.tls_ca),
            ("unix:/run/lab.sock", None)
        );
        let rack = find(Some("rack")).expect("valid").expect("named");
        let files = [rack.tls_ca, rack.tls_cert, rack.tls_key];
        let expected = ["/etc/u/ca.pem", "/keys/me.pem", "/etc/u/me.key"];
        assert_eq!(files, expected.map(|file| Some(PathBuf::from(file))));
        let unknown = find(Some("moon")).expect_err("unknown").to_string();
        assert!(
            unknown.ends_with("no context is named \"moon\"; there are: lab, rack"),
            "{unknown}"
        );
        let wrong = choose("context: {}", Path::new("c.yaml"), None).expect_err("invalid");
        let wrong = format!("{wrong:#}");
        assert!(
            wrong.starts_with("c.yaml: ") && wrong.lines().count() == 1,
            "{wrong}"
        );
    }
}
