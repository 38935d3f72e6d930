//! Contexts: named controllers of a configuration file, for users of several testbeds.

use std::collections::BTreeMap;
use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap_complete::{ArgValueCandidates, CompletionCandidate};
use serde::Deserialize;
use serde_yaml::Spanned;
use ultima_planner::yaml;

use crate::controller_address::addresses;

/// The environment variable with the file's path.
const FILE: &str = "ULTIMA_CONFIG";

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The context of commands that name none.
    current: Option<Spanned<String>>,
    #[serde(default)]
    contexts: BTreeMap<String, WrittenContext>,
}

/// A context in the file. Relative paths are relative to the file's folder.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenContext {
    controller: Spanned<String>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
}

/// A controller, and the files for TLS to it.
#[derive(Debug)]
pub struct Context {
    /// The address; several are separated by commas.
    pub controller: String,
    pub tls_ca: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
}

/// The context of this name, or the current one; none without a file or without a current context.
///
/// # Errors
/// The file cannot be read or is invalid, or no context has the name, or its address is invalid.
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
        // Only the default file may be missing.
        Err(error)
            if error.kind() == ErrorKind::NotFound && name.is_none() && given().is_none() =>
        {
            Ok(None)
        }
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

fn variable(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// The path that the user gives.
fn given() -> Option<PathBuf> {
    variable(FILE)
}

fn path() -> Option<PathBuf> {
    let home = || Some(variable("HOME")?.join(".config"));
    let folder = || variable("XDG_CONFIG_HOME").or_else(home);
    given().or_else(|| Some(folder()?.join("ultima").join("config.yaml")))
}

fn parse(text: &str, path: &Path) -> Result<Config> {
    Ok(yaml::parse(text, &path.display().to_string())?)
}

fn choose(text: &str, path: &Path, name: Option<&str>) -> Result<Option<Context>> {
    let place = path.display().to_string();
    let config = parse(text, path)?;
    let current = config.current.as_ref();
    let Some(wanted) = name.or(current.map(|current| current.value.as_str())) else {
        return Ok(None);
    };
    let Some(context) = config.contexts.get(wanted) else {
        let names: Vec<&str> = config.contexts.keys().map(String::as_str).collect();
        let names = match &names[..] {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        let problem = format!("no context is named {wanted:?}; there are: {names}");
        match current.filter(|_| name.is_none()) {
            Some(current) => bail!(yaml::invalid(&place, current, "current", problem)),
            None => bail!("{place}: {problem}"),
        }
    };
    let controller = addresses(&context.controller.value).map_err(|problem| {
        let field = format!("contexts.{wanted}.controller");
        yaml::invalid(&place, &context.controller, &field, problem)
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let at = |file: &Option<PathBuf>| file.as_ref().map(|file| folder.join(file));
    Ok(Some(Context {
        controller,
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
    }

    #[test]
    fn an_error_of_the_file_begins_with_its_place() {
        for (text, expected) in [
            ("context: {}", "c.yaml:1:1: unknown field `context`"),
            (
                "current: a\ncontexts:\n  a: { controller: nowhere }",
                "c.yaml:3:20: contexts.a.controller: ",
            ),
            (
                "current: b\ncontexts: {}",
                "c.yaml:1:10: current: no context is named \"b\"; there are: none",
            ),
        ] {
            let wrong = choose(text, Path::new("c.yaml"), None).expect_err("invalid");
            let wrong = format!("{wrong:#}");
            assert!(
                wrong.starts_with(expected) && wrong.lines().count() == 1,
                "{wrong}"
            );
        }
    }
}
